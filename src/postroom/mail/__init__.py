"""Agents and messages: sending, receiving, settling, asking, serving. Never names a store."""

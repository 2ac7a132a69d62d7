"""Rooms on NATS JetStream: the same promises for programs on many machines."""

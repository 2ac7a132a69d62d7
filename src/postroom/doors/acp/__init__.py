"""The host of agent programs that speak the Agent Client Protocol: `postroom as NAME --acp -- PROGRAM`."""

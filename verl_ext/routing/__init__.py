"""Router replay on mixture-of-experts models."""

"""The testbed of real ranks: real fused operators and a real all-to-all, one process per device."""

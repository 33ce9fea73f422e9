"""The operations of each kind of attention, on one rank."""

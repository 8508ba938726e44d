"""A whole run in virtual time: the production state machines between a faulty network and a faulty disk."""

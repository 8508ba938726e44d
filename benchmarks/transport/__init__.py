"""Groups of trajectories from actor to ledger, beside plainer ways of sending and storing the same."""

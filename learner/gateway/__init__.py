"""The learner's door and its books: sockets, leases, staleness, the durable ledger. No torch."""

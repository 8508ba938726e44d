"""The retrieval service: an index over a corpus, built once, served over HTTP to actors anywhere."""

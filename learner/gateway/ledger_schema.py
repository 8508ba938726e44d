"""The ledger's tables. A row of ``units`` exists once its unit has been issued."""

COUNTERS = ("duplicates", "stale_dropped", "stale_cancelled", "reissued")

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS units (
    seq INTEGER PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'consumed', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    oldest INTEGER,  -- lowest policy version among a delivered group's tokens
    step INTEGER     -- that consumed it
);
CREATE INDEX IF NOT EXISTS units_open ON units (state, seq) WHERE state IN ('pending', 'delivered');
CREATE INDEX IF NOT EXISTS units_step ON units (step) WHERE step IS NOT NULL;
CREATE TABLE IF NOT EXISTS payloads (seq INTEGER PRIMARY KEY, frames BLOB NOT NULL);
-- Counted by the table itself, so that audit() is cheap and cannot repeat a mistake of ours.
CREATE TABLE IF NOT EXISTS states (state TEXT PRIMARY KEY, n INTEGER NOT NULL);
INSERT OR IGNORE INTO states VALUES ('pending', 0), ('delivered', 0), ('consumed', 0), ('failed', 0);
CREATE TRIGGER IF NOT EXISTS unit_made AFTER INSERT ON units BEGIN
    UPDATE states SET n = n + 1 WHERE state = NEW.state;
END;
CREATE TRIGGER IF NOT EXISTS unit_gone AFTER DELETE ON units BEGIN
    UPDATE states SET n = n - 1 WHERE state = OLD.state;
END;
CREATE TRIGGER IF NOT EXISTS unit_moved AFTER UPDATE OF state ON units BEGIN
    UPDATE states SET n = n - 1 WHERE state = OLD.state;
    UPDATE states SET n = n + 1 WHERE state = NEW.state;
END;
"""

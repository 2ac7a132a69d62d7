-- The SQLite store: its tables, its indexes, and every statement it runs.
--
-- A line `-- name: x` begins the statement (or the list of statements) called x; sqlite.py runs them by that name, and
-- other statements may contain it as {x}.
-- {next} stands for the next number of the room: ?1 inside a transaction, which has asked for it once (next_number); in a
-- statement that runs alone, the expression called `next` below. {salt} is the room's share of every id (message.py).
--
-- States (states.py), with what the timer `wake_at` of a row in that state means:
--   0 READY     may be claimed now                                wake_at: when it expires, if it does
--   1 CLAIMED   somebody works on it                              wake_at: when the lease ends
--   2 ACKED     3 ANSWERED    4 REFUSED    5 EXPIRED    6 DEAD    wake_at: none
--   7 DELAYED   may be claimed later                              wake_at: when it is due, or expires before that
--   8 HELD      an answer kept for its asker                      wake_at: none
--
-- Numbers. `key` orders messages and `change` orders what happened to them; both come from one counter that follows the
-- room's time and only grows, taken inside the write transaction. So commit order is key order, the feed is a merge of
-- two indexes, and storing a message writes no feed row of its own.

-- name: schema
CREATE TABLE meta (
    name TEXT PRIMARY KEY,      -- 'salt'; 'floor', 'cell floor': no number below is given out again; 'epoch:<boot>': room time
    value ANY
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
    key INTEGER PRIMARY KEY,    -- its place in the order of the room
    state INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,       -- grows with every claim, retry and requeue; a stale one changes nothing
    change INTEGER,                         -- number of its last change; NULL: only stored so far
    wake_at INTEGER,                        -- room ms at which something is due; NULL: nothing is
    priority INTEGER NOT NULL,
    to_agent TEXT,
    channel TEXT NOT NULL,
    from_agent TEXT NOT NULL,
    type TEXT NOT NULL,
    version TEXT NOT NULL DEFAULT '1.0',
    delivery_count INTEGER NOT NULL DEFAULT 0,
    max_deliveries INTEGER NOT NULL,
    sent_ms INTEGER NOT NULL,               -- wall clock
    expires INTEGER,                        -- room ms
    last_delivered_ms INTEGER,              -- wall clock
    claimed_by TEXT,                        -- the agent that had it last
    owner INTEGER,                          -- the process that holds it (processes.id); NULL: the agent holds it, by time
    waiter INTEGER,                         -- the process that waits for its answer, or for which this answer is held
    correlation_id TEXT,
    chain_id TEXT,
    hop_count INTEGER NOT NULL DEFAULT 0,
    lane TEXT NOT NULL DEFAULT 'agent',
    trace TEXT,
    error TEXT,
    idempotency_key TEXT,
    answer_to INTEGER,                      -- key of the question
    replay_of INTEGER,                      -- key of the message sent again
    ledger TEXT NOT NULL DEFAULT '',        -- what happened since it was stored: ["event",wall ms,"agent","detail"],...
    payload TEXT NOT NULL,
    -- the source document's names for the above, worked out when read
    id TEXT GENERATED ALWAYS AS (printf('%08x-%04x-7%03x-%04x-%012x', key >> 37, (key >> 21) & 65535, (key >> 9) & 4095,
        32768 | ((key & 511) << 5) | ({salt} >> 48), {salt} & 281474976710655)) VIRTUAL,
    status TEXT GENERATED ALWAYS AS (CASE WHEN state IN (0, 7, 8) THEN 'pending' WHEN state = 1 THEN 'processing'
        WHEN state IN (2, 3) THEN 'done' ELSE 'failed' END) VIRTUAL,
    timestamp TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%fZ', sent_ms / 1000.0, 'unixepoch')) VIRTUAL,
    created_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%fZ', sent_ms / 1000.0, 'unixepoch')) VIRTUAL,
    expires_at TEXT GENERATED ALWAYS AS
        (strftime('%Y-%m-%dT%H:%M:%fZ', (expires - (key >> 21) + sent_ms) / 1000.0, 'unixepoch')) VIRTUAL,
    last_delivered_at TEXT GENERATED ALWAYS AS
        (strftime('%Y-%m-%dT%H:%M:%fZ', last_delivered_ms / 1000.0, 'unixepoch')) VIRTUAL
);

-- What may be claimed. The default channel has an index of its own, so that ordinary mail pays for one index only; mail
-- in other channels is in two, because its reader may name the channel or not. Keys come for free behind each.
CREATE INDEX ready_general ON messages (to_agent, priority DESC)            -- serves: claim_general
    WHERE state = 0 AND channel = 'general' AND to_agent IS NOT NULL;
CREATE INDEX ready_elsewhere ON messages (to_agent, priority DESC)          -- serves: claim_elsewhere
    WHERE state = 0 AND channel <> 'general' AND to_agent IS NOT NULL;
CREATE INDEX ready_in_channel ON messages (to_agent, channel, priority DESC)    -- serves: claim_in_channel
    WHERE state = 0 AND channel <> 'general' AND to_agent IS NOT NULL;
CREATE INDEX ready_for_anyone ON messages (channel, priority DESC)          -- serves: claim_for_anyone
    WHERE state = 0 AND to_agent IS NULL;

CREATE INDEX timers ON messages (wake_at, state) WHERE wake_at IS NOT NULL; -- serves: next_timer, due, counts
CREATE INDEX changed ON messages (change, state, claimed_by) WHERE change IS NOT NULL;  -- serves: feed, retention, counts
CREATE INDEX dead ON messages (key) WHERE state = 6;                        -- serves: dead letters
CREATE INDEX waiting ON messages (waiter, state) WHERE waiter IS NOT NULL;  -- serves: who waits for whom, dead askers
CREATE INDEX answers ON messages (answer_to) WHERE answer_to IS NOT NULL;   -- serves: the answer to a question
CREATE INDEX correlations ON messages (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX idempotency ON messages (from_agent, idempotency_key)         -- unique but for the copies of a publication
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE processes (                    -- processes that hold claims or wait for answers; gone ones are let go
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never given twice: a claim of a forgotten process belongs to no other
    name TEXT NOT NULL UNIQUE               -- host:pid:start
);

CREATE TABLE cells (                        -- small values with compare-and-set
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    value TEXT NOT NULL                     -- JSON
) WITHOUT ROWID;

CREATE TABLE tally (                        -- what each agent did with messages that are no longer kept
    agent TEXT PRIMARY KEY,
    processed INTEGER NOT NULL DEFAULT 0,
    errors INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE channel_subscriptions (
    channel_name TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    subscribed_at TEXT NOT NULL,
    PRIMARY KEY (channel_name, agent_id)
) WITHOUT ROWID;

CREATE VIEW agent_status AS                 -- true figures, worked out when read
SELECT substr(c.name, 7) AS agent_id,
    json_extract(c.value, '$.status') AS status,
    json_extract(c.value, '$.current_task') AS current_task,
    strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(c.value, '$.heartbeat_ms') / 1000.0, 'unixepoch') AS last_heartbeat,
    (SELECT count(*) FROM messages WHERE state = 0 AND channel = 'general' AND to_agent = substr(c.name, 7))
        + (SELECT count(*) FROM messages WHERE state = 0 AND channel <> 'general' AND to_agent = substr(c.name, 7))
        AS messages_pending,
    coalesce((SELECT processed FROM tally WHERE agent = substr(c.name, 7)), 0)
        + (SELECT count(*) FROM messages WHERE change IS NOT NULL AND claimed_by = substr(c.name, 7) AND state IN (2, 3, 4))
        AS messages_processed,
    coalesce((SELECT errors FROM tally WHERE agent = substr(c.name, 7)), 0)
        + (SELECT count(*) FROM messages WHERE change IS NOT NULL AND claimed_by = substr(c.name, 7) AND state IN (0, 6, 7))
        AS error_count
FROM cells AS c WHERE c.name >= 'agent/' AND c.name < 'agent0';

CREATE VIEW dead_letter_queue AS
SELECT id, payload AS original_message, error, delivery_count AS retry_count,
    strftime('%Y-%m-%dT%H:%M:%fZ', json_extract('[' || rtrim(ledger, ',') || ']', '$[#-1][1]') / 1000.0, 'unixepoch') AS moved_at
FROM messages WHERE state = 6;

-- name: next
max(?1, coalesce((SELECT max(key) FROM messages), 0) + 1,
    coalesce((SELECT max(change) FROM messages INDEXED BY changed WHERE change IS NOT NULL), 0) + 1,
    coalesce((SELECT value FROM meta WHERE name = 'floor'), 0))

-- name: next_number
SELECT {next}

-- name: insert
INSERT INTO messages (key, state, wake_at, priority, to_agent, channel, from_agent, type, version, max_deliveries, sent_ms,
    expires, waiter, correlation_id, chain_id, hop_count, lane, trace, idempotency_key, answer_to, replay_of, payload)
VALUES ({next}, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
RETURNING key

-- name: by_idempotency_key
SELECT key, to_agent, channel, type, payload FROM messages WHERE from_agent = ?1 AND idempotency_key = ?2 ORDER BY key

-- name: subscribers
SELECT agent_id FROM channel_subscriptions WHERE channel_name = ?1 ORDER BY agent_id

-- name: claim_general
SELECT key, priority FROM messages INDEXED BY ready_general
WHERE to_agent = ?1 AND state = 0 AND channel = 'general' AND (expires IS NULL OR expires > ?2)
ORDER BY priority DESC, key LIMIT ?3

-- name: claim_elsewhere
SELECT key, priority FROM messages INDEXED BY ready_elsewhere
WHERE to_agent = ?1 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?2)
ORDER BY priority DESC, key LIMIT ?3

-- name: claim_in_channel
SELECT key, priority FROM messages INDEXED BY ready_in_channel
WHERE to_agent = ?1 AND channel = ?4 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?2)
ORDER BY priority DESC, key LIMIT ?3

-- name: claim_for_anyone
SELECT key, priority FROM messages INDEXED BY ready_for_anyone
WHERE to_agent IS NULL AND channel = ?1 AND state = 0 AND (expires IS NULL OR expires > ?2)
ORDER BY priority DESC, key LIMIT ?3

-- name: claim_by_key
SELECT key, priority FROM messages
WHERE key = ?1 AND (to_agent IS NULL OR to_agent = ?2)
    AND (state = 8 OR (state = 0 AND (expires IS NULL OR expires > ?3)))

-- name: taking
SET state = 1, token = token + 1, change = {next}, wake_at = ?3, delivery_count = delivery_count + 1,
    last_delivered_ms = ?4, claimed_by = ?5, owner = ?6, waiter = CASE WHEN state <> 8 THEN waiter END, ledger = ledger || ?7

-- name: take
UPDATE messages {taking} WHERE key = ?2 RETURNING {columns}

-- name: best_general
SELECT key, priority FROM messages INDEXED BY ready_general
WHERE to_agent = ?5 AND state = 0 AND channel = 'general' AND (expires IS NULL OR expires > ?8)
ORDER BY priority DESC, key LIMIT 1

-- name: best_elsewhere
SELECT key, priority FROM messages INDEXED BY ready_elsewhere
WHERE to_agent = ?5 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?8)
ORDER BY priority DESC, key LIMIT 1

-- name: best_in_channel
SELECT key, priority FROM messages INDEXED BY ready_in_channel
WHERE to_agent = ?5 AND channel = ?2 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?8)
ORDER BY priority DESC, key LIMIT 1

-- name: best_for_anyone
SELECT key, priority FROM messages INDEXED BY ready_for_anyone
WHERE to_agent IS NULL AND channel = ?2 AND state = 0 AND (expires IS NULL OR expires > ?8)
ORDER BY priority DESC, key LIMIT 1

-- name: take_addressed
-- This and the next two are the usual claims, of one message from one place: a single statement holds the write lock for half as long.
UPDATE messages {taking} WHERE key = (
    SELECT key FROM (SELECT * FROM ({best_general}) UNION ALL SELECT * FROM ({best_elsewhere}))
    ORDER BY priority DESC, key LIMIT 1) RETURNING {columns}

-- name: take_in_general
UPDATE messages {taking} WHERE key = (
    SELECT key FROM (SELECT * FROM ({best_general}) UNION ALL SELECT * FROM ({best_for_anyone}))
    ORDER BY priority DESC, key LIMIT 1) RETURNING {columns}

-- name: take_in_channel
UPDATE messages {taking} WHERE key = (
    SELECT key FROM (SELECT * FROM ({best_in_channel}) UNION ALL SELECT * FROM ({best_for_anyone}))
    ORDER BY priority DESC, key LIMIT 1) RETURNING {columns}

-- name: take_and_ack
UPDATE messages SET state = 2, token = token + 1, change = {next}, wake_at = NULL, delivery_count = delivery_count + 1,
    last_delivered_ms = ?3, claimed_by = ?4, owner = NULL, waiter = NULL, ledger = ledger || ?5
WHERE key = ?2 RETURNING {columns}

-- name: next_timer
SELECT min(wake_at) FROM messages INDEXED BY timers WHERE wake_at IS NOT NULL

-- name: due
SELECT key, state, expires, delivery_count, max_deliveries, to_agent, channel FROM messages INDEXED BY timers
WHERE wake_at <= ?1 ORDER BY wake_at LIMIT 500

-- name: make_ready
UPDATE messages SET state = 0, wake_at = expires WHERE key = ?1

-- name: expire
UPDATE messages SET state = 5, change = {next}, wake_at = NULL, owner = NULL, waiter = NULL, error = ?3, ledger = ledger || ?4
WHERE key = ?2

-- name: release
UPDATE messages SET state = 0, change = {next}, wake_at = expires, owner = NULL, ledger = ledger || ?3 WHERE key = ?2

-- name: bury
UPDATE messages SET state = 6, change = {next}, wake_at = NULL, owner = NULL, waiter = NULL, error = ?3, ledger = ledger || ?4
WHERE key = ?2

-- name: finish
UPDATE messages SET state = ?4, change = {next}, wake_at = NULL, owner = NULL, waiter = NULL, error = coalesce(?5, error),
    ledger = ledger || ?6
WHERE key = ?2 AND token = ?3 AND state IN (0, 1) RETURNING state

-- name: held
SELECT delivery_count, max_deliveries, expires, to_agent, channel, waiter FROM messages
WHERE key = ?1 AND token = ?2 AND state IN (0, 1)

-- name: retry
UPDATE messages SET state = ?3, token = token + 1, change = {next}, wake_at = ?4, owner = NULL, error = ?5, ledger = ledger || ?6
WHERE key = ?2

-- name: return
UPDATE messages SET state = 0, token = token + 1, change = {next}, wake_at = expires, delivery_count = delivery_count - 1,
    claimed_by = NULL, owner = NULL, ledger = ledger || ?3
WHERE key = ?2

-- name: extend
UPDATE messages SET state = 1, change = {next}, wake_at = ?4, owner = ?5, ledger = ledger || ?6
WHERE key = ?2 AND token = ?3 AND state IN (0, 1) RETURNING key

-- name: owner_of
SELECT owner FROM messages WHERE key = ?1

-- name: note
UPDATE messages SET change = {next}, ledger = CASE WHEN length(ledger) < 65536 THEN ledger || ?3 ELSE ledger END
WHERE key = ?2 RETURNING key

-- name: waiter_of
SELECT waiter FROM messages WHERE key = ?1 AND waiter IS NOT NULL AND state IN (0, 1, 7)

-- name: stop_waiting
UPDATE messages SET waiter = NULL, change = {next}, ledger = ledger || ?3
WHERE key = ?2 AND waiter IS NOT NULL AND state IN (0, 1, 7)

-- name: unhold
UPDATE messages SET state = 0, waiter = NULL, change = {next}, wake_at = expires WHERE answer_to = ?2 AND state = 8
RETURNING to_agent

-- name: get
SELECT {columns}, ledger FROM messages WHERE key = ?1

-- name: requeue
UPDATE messages SET state = 0, token = token + 1, change = {next}, delivery_count = 0, error = NULL, claimed_by = NULL,
    expires = CASE WHEN expires > ?3 THEN expires END, wake_at = CASE WHEN expires > ?3 THEN expires END, ledger = ledger || ?4
WHERE key = ?2 AND state IN (4, 5, 6) RETURNING to_agent, channel

-- name: stored_after
SELECT {columns} FROM messages WHERE key > ?1 ORDER BY key LIMIT ?2

-- name: changed_after
SELECT {columns}, ledger FROM messages INDEXED BY changed WHERE change > ?1 ORDER BY change LIMIT ?2

-- name: changed_at
SELECT {columns}, ledger FROM messages INDEXED BY changed WHERE change = ?1

-- name: processes
SELECT id, name FROM processes

-- name: process_add
INSERT INTO processes (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id

-- name: process_forget
DELETE FROM processes WHERE id = ?1

-- name: claims_of_process
SELECT key, expires, delivery_count, max_deliveries, to_agent, channel FROM messages INDEXED BY timers
WHERE wake_at IS NOT NULL AND state = 1 AND owner = ?1

-- name: waits_of_process
SELECT key, state, to_agent FROM messages WHERE waiter = ?1

-- name: unhold_by_key
UPDATE messages SET state = 0, waiter = NULL, change = {next}, wake_at = expires WHERE key = ?2

-- name: cell_read
SELECT name, version, value FROM cells WHERE name = ?1

-- name: cell_put
INSERT INTO cells (name, version, value) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET version = max(excluded.version, version + 1), value = excluded.value RETURNING version

-- name: cell_delete
DELETE FROM cells WHERE name = ?1 RETURNING version

-- name: cell_floor
SELECT coalesce((SELECT value FROM meta WHERE name = 'cell floor'), 0)

-- name: raise_cell_floor
INSERT INTO meta (name, value) VALUES ('cell floor', ?1) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- name: cell_scan
SELECT name, version, value FROM cells WHERE name >= ?1 AND name < ?2 ORDER BY name

-- name: subscribe
INSERT INTO channel_subscriptions (channel_name, agent_id, subscribed_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING

-- name: unsubscribe
DELETE FROM channel_subscriptions WHERE channel_name = ?1 AND agent_id = ?2 RETURNING agent_id

-- name: subscriptions
SELECT channel_name, agent_id, subscribed_at FROM channel_subscriptions ORDER BY channel_name, agent_id

-- name: count_ready_general
SELECT to_agent, 'general', count(*), min(key) FROM messages INDEXED BY ready_general
WHERE state = 0 AND channel = 'general' AND to_agent IS NOT NULL GROUP BY to_agent

-- name: count_ready_in_channel
SELECT to_agent, channel, count(*), min(key) FROM messages INDEXED BY ready_in_channel
WHERE state = 0 AND channel <> 'general' AND to_agent IS NOT NULL GROUP BY to_agent, channel

-- name: count_ready_for_anyone
SELECT NULL, channel, count(*), min(key) FROM messages INDEXED BY ready_for_anyone
WHERE state = 0 AND to_agent IS NULL GROUP BY channel

-- name: count_timers
SELECT state, count(*) FROM messages INDEXED BY timers WHERE wake_at IS NOT NULL AND state IN (1, 7) GROUP BY state

-- name: count_held
SELECT count(*) FROM messages INDEXED BY waiting WHERE waiter IS NOT NULL AND state = 8

-- name: count_finished
SELECT state, count(*) FROM messages INDEXED BY changed WHERE change IS NOT NULL AND state BETWEEN 2 AND 6 GROUP BY state

-- name: overdue
SELECT state, {judged}, to_agent, channel, count(*), min(key) FROM messages INDEXED BY timers
WHERE wake_at <= :now GROUP BY 1, 2, 3, 4

-- name: judged
CASE WHEN state IN (0, 7) AND expires <= :now THEN 5
    WHEN state = 7 AND wake_at <= :now THEN 0
    WHEN state = 1 AND wake_at <= :now THEN
        CASE WHEN delivery_count >= max_deliveries THEN 6 WHEN expires <= :now THEN 5 ELSE 0 END
    ELSE state END

-- name: oldest_finished
SELECT key FROM messages INDEXED BY changed WHERE change IS NOT NULL AND change <= ?1 AND state BETWEEN 2 AND 5
ORDER BY change LIMIT ?2

-- name: tally_up
INSERT INTO tally (agent, processed) SELECT claimed_by, count(*) FROM messages
WHERE key IN (SELECT value FROM json_each(?1)) AND claimed_by IS NOT NULL AND state IN (2, 3, 4) GROUP BY claimed_by
ON CONFLICT (agent) DO UPDATE SET processed = processed + excluded.processed

-- name: tally_errors
INSERT INTO tally (agent, errors) SELECT claimed_by, count(*) FROM messages
WHERE key IN (SELECT value FROM json_each(?1)) AND claimed_by IS NOT NULL AND state IN (0, 6, 7) GROUP BY claimed_by
ON CONFLICT (agent) DO UPDATE SET errors = errors + excluded.errors

-- name: work_of
SELECT coalesce((SELECT processed FROM tally WHERE agent = ?1), 0) + count(*) FILTER (WHERE state IN (2, 3, 4)),
    coalesce((SELECT errors FROM tally WHERE agent = ?1), 0) + count(*) FILTER (WHERE state IN (0, 6, 7))
FROM messages INDEXED BY changed WHERE change IS NOT NULL AND claimed_by = ?1

-- name: raise_floor
INSERT INTO meta (name, value) SELECT 'floor', max(max(key), coalesce(max(change), 0)) + 1 FROM messages
WHERE key IN (SELECT value FROM json_each(?1)) HAVING count(*) > 0
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- name: delete
DELETE FROM messages WHERE key IN (SELECT value FROM json_each(?1)) RETURNING key

-- name: meta_read
SELECT value FROM meta WHERE name = ?1

-- name: meta_write
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value

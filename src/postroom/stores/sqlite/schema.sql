-- The SQLite store: its tables, its indexes, and every statement it runs.
--
-- A line `-- name: x` begins the statement (or the list of statements) called x; sqlite.py runs them by that name, and
-- other statements may contain it as {x}.
-- tick() is the next number of the room (connection.py). {salt} is the room's share of every id (message.py).
-- {mail} and {cells} are the tables `mail` and `cells`, under the names that the last upgrade gave them (upgrade.py).
-- RETURNING is kept out of the way of a message: SQLite makes and unmakes a table in memory for it at every call.
--
-- States (states.py), with what the timer `wake_at` of a row in that state means:
--   0 READY     may be claimed now                                wake_at: when it expires, if it does
--   1 CLAIMED   somebody works on it                              wake_at: when the lease ends
--   2 ACKED     3 ANSWERED    4 REFUSED    5 EXPIRED    6 DEAD    wake_at: none
--   7 DELAYED   may be claimed later                              wake_at: when it is due, or expires before that
--   8 AWAITED   an answer kept for its asker                      wake_at: none
--   9 BLOCKED   behind another message of its order key           wake_at: as of READY, or as of DELAYED while that lasts
--   10 WITHDRAWN                                                  wake_at: none
--
-- Numbers. `key` orders messages and `change` orders what happened to them; both come from one counter that follows the
-- room's time and only grows, taken inside the write transaction. So commit order is key order, the feed is a merge of
-- three reads, and storing a message writes no feed row of its own.
--
-- Pages. What a write costs is how many pages it touches. So a message that is ready or claimed is in one index, `live`,
-- where a claim only moves it; a claim is not in `changed`; and the usual entries of a ledger are told by columns.

-- name: schema
CREATE TABLE meta (
    name TEXT PRIMARY KEY,      -- 'salt'; 'floor', 'cell floor': no number below is given out again; 'epoch:<boot>': room time;
    value ANY                   -- 'tables': the layout of the last upgrade (upgrade.py); 'search mark', 'search merge' (search.py);
                                -- 'counted keys', 'counted changes', 'counted since' (figures.py)
) STRICT, WITHOUT ROWID;

CREATE TABLE {mail} (
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
    owner INTEGER,                          -- the process that holds it, or did until its lease ended (processes.id); NULL: the agent, by time
    waiter INTEGER,                         -- the process that waits for its answer, or for which this answer is held
    correlation_id TEXT,
    chain_id TEXT,
    hop_count INTEGER NOT NULL DEFAULT 0,
    lane TEXT NOT NULL DEFAULT 'agent',
    trace TEXT,
    error TEXT,
    idempotency_key TEXT,
    answer_to INTEGER,                      -- key of the question; its id, as text, where that came from another room
    replay_of INTEGER,                      -- key (or id) of the message sent again
    order_key TEXT,                         -- of these in one mailbox, one at a time and in order
    replaces INTEGER,                       -- key (or id) of the message that was to be withdrawn with this
    implied INTEGER NOT NULL DEFAULT 0,     -- entries behind `ledger` that columns tell: 1 claimed, 2 claimed and acked
    ended_ms INTEGER,                       -- wall clock: when it was acked, where the ledger does not say
    ledger TEXT NOT NULL DEFAULT '',        -- what happened since it was stored: ["event",wall ms,"agent","detail"],...
    payload TEXT NOT NULL,                  -- (of a message that came from another room: also that it was stored)
    -- where it stands in `live`: the queue of an agent, the queue of a channel, or else among the claims
    live_agent TEXT GENERATED ALWAYS AS (CASE state WHEN 0 THEN to_agent END) VIRTUAL,
    live_channel TEXT GENERATED ALWAYS AS (CASE WHEN state = 0 AND to_agent IS NULL THEN channel END) VIRTUAL,
    live_rank INTEGER GENERATED ALWAYS AS (CASE state WHEN 0 THEN -priority ELSE wake_at END) VIRTUAL,
    own_id TEXT,                            -- the id that it brought along from another room; NULL: it is made of the key
    expires_at_ms INTEGER                   -- wall clock, of such a message: when it expires, as its sender said
);

-- What may be claimed, best first, and before it what is claimed, by the end of its lease. Mail to an agent in a channel
-- other than the default one is in two indexes of its own while it is ready, because its reader may name the channel or
-- not. Keys come for free behind each.
CREATE INDEX live ON {mail} (live_agent, live_channel, live_rank)     -- serves: claim_one, claim_general, claim_for_anyone, claims, look
    WHERE {in_live};
CREATE INDEX ready_elsewhere ON {mail} (to_agent, priority DESC)          -- serves: claim_elsewhere, claim_one, look
    WHERE state = 0 AND channel <> 'general' AND to_agent IS NOT NULL;
CREATE INDEX ready_in_channel ON {mail} (to_agent, channel, priority DESC)    -- serves: claim_in_channel, claim_one_in_channel
    WHERE state = 0 AND channel <> 'general' AND to_agent IS NOT NULL;

CREATE INDEX timers ON {mail} (wake_at, state)                            -- serves: timers, due, counts
    WHERE wake_at IS NOT NULL AND state <> 1;
CREATE INDEX changed ON {mail} (change, state, claimed_by)                -- serves: feed, retention, counts
    WHERE change IS NOT NULL AND state <> 1;
CREATE INDEX dead ON {mail} (key) WHERE state = 6;                        -- serves: dead letters
CREATE INDEX waiting ON {mail} (waiter, state) WHERE waiter IS NOT NULL;  -- serves: waiting askers, dead askers
CREATE INDEX answers ON {mail} (answer_to) WHERE answer_to IS NOT NULL;   -- serves: the answer to a question
CREATE INDEX chains ON {mail} (chain_id)                                  -- serves: the messages of a thread; not its answers, so
    WHERE chain_id IS NOT NULL AND answer_to IS NULL;                     -- that an answer costs no entry more (in_chain)
CREATE INDEX correlations ON {mail} (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX ordered ON {mail} (order_key, channel, to_agent)            -- serves: before, next_of_key; keys come for free behind
    WHERE {in_order};
CREATE UNIQUE INDEX own_ids ON {mail} (own_id) WHERE own_id IS NOT NULL;   -- serves: messages that came from other rooms
CREATE INDEX idempotency ON {mail} (from_agent, idempotency_key)         -- unique but for the copies of a publication
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE processes (                    -- processes that hold claims or wait for answers; gone ones are let go
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never given twice: a claim of a forgotten process belongs to no other
    name TEXT NOT NULL UNIQUE               -- host:pid:start+byte, as process.py makes it
);

CREATE TABLE {cells} (                        -- small values with compare-and-set
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

-- name: views
CREATE VIEW messages AS                     -- as people and the source document read them, worked out when read: SQLite
SELECT {mail}.*,                            -- would work out a generated column at every write, too
    coalesce(own_id, printf('%08x-%04x-7%03x-%04x-%012x', key >> 37, (key >> 21) & 65535, (key >> 9) & 4095,
        32768 | ((key & 511) << 5) | ({salt} >> 48), {salt} & 281474976710655)) AS id,
    CASE WHEN state IN (0, 7, 8, 9) THEN 'pending' WHEN state = 1 THEN 'processing' WHEN state IN (2, 3) THEN 'done'
        ELSE 'failed' END AS status,
    strftime('%Y-%m-%dT%H:%M:%fZ', sent_ms / 1000.0, 'unixepoch') AS timestamp,
    strftime('%Y-%m-%dT%H:%M:%fZ', sent_ms / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(expires_at_ms, expires - (key >> 21) + sent_ms) / 1000.0, 'unixepoch') AS expires_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', last_delivered_ms / 1000.0, 'unixepoch') AS last_delivered_at,
    '[' || rtrim(ledger || {told}, ',') || ']' AS history       -- the whole ledger, as JSON
FROM {mail};

CREATE VIEW agent_status AS                 -- true figures, worked out when read
SELECT substr(c.name, 7) AS agent_id,
    json_extract(c.value, '$.status') AS status,
    json_extract(c.value, '$.current_task') AS current_task,
    strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(c.value, '$.heartbeat_ms') / 1000.0, 'unixepoch') AS last_heartbeat,
    (SELECT count(*) FROM {mail} WHERE live_agent = substr(c.name, 7) AND {in_live})
        + (SELECT count(*) FROM {mail} WHERE state = 0 AND channel <> 'general' AND to_agent = substr(c.name, 7))
        AS messages_pending,
    coalesce((SELECT processed FROM tally WHERE agent = substr(c.name, 7)), 0)
        + (SELECT count(*) FROM {mail} WHERE change IS NOT NULL AND state <> 1 AND claimed_by = substr(c.name, 7) AND state IN (2, 3, 4))
        AS messages_processed,
    coalesce((SELECT errors FROM tally WHERE agent = substr(c.name, 7)), 0)
        + (SELECT count(*) FROM {mail} WHERE change IS NOT NULL AND state <> 1 AND claimed_by = substr(c.name, 7) AND state IN (0, 6, 7))
        AS error_count
FROM {cells} AS c WHERE c.name >= 'agent/' AND c.name < 'agent0';

CREATE VIEW dead_letter_queue AS
SELECT id, payload AS original_message, error, delivery_count AS retry_count,
    strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(history, '$[#-1][1]') / 1000.0, 'unixepoch') AS moved_at
FROM messages WHERE state = 6;

-- name: in_live
(state = 0 OR state = 1) AND (state = 1 OR to_agent IS NULL OR channel = 'general')

-- name: in_order
order_key IS NOT NULL AND state IN (0, 1, 7, 9)

-- name: claims
live_agent IS NULL AND live_channel IS NULL AND {in_live}

-- name: last_number
SELECT max(coalesce((SELECT max(key) FROM {mail}), 0),
    coalesce((SELECT max(change) FROM {mail} INDEXED BY changed WHERE change IS NOT NULL AND state <> 1), 0),
    coalesce((SELECT max(change) FROM {mail} INDEXED BY live WHERE {claims}), 0),
    coalesce((SELECT value FROM meta WHERE name = 'floor'), 1) - 1)

-- name: told
CASE implied WHEN 0 THEN '' ELSE json_array('claimed', last_delivered_ms, claimed_by, NULL) || ','
    || CASE implied WHEN 2 THEN json_array('acked', ended_ms, claimed_by, NULL) || ',' ELSE '' END END

-- name: insert
INSERT INTO {mail} (key, state, wake_at, priority, to_agent, channel, from_agent, type, version, max_deliveries, sent_ms,
    expires, waiter, correlation_id, chain_id, hop_count, lane, trace, idempotency_key, answer_to, replay_of, order_key,
    replaces, payload)
VALUES (coalesce(?1, tick()), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
    ?23, ?24)

-- name: insert_plain
-- A message without anything special, in a batch: what it does not name has its default (test_sqlite.py compares the two).
INSERT INTO {mail} (key, priority, to_agent, channel, from_agent, type, max_deliveries, sent_ms, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)

-- name: is_behind
SELECT EXISTS (SELECT 1 FROM {mail} INDEXED BY ordered
    WHERE order_key = ?1 AND channel = ?2 AND to_agent IS ?3 AND {in_order})

-- name: next_of_key
-- The first message of an order key in a mailbox that has not ended.
SELECT key, state FROM {mail} INDEXED BY ordered
WHERE order_key = ?1 AND channel = ?2 AND to_agent IS ?3 AND {in_order} ORDER BY key LIMIT 1

-- name: unblock
UPDATE {mail} SET state = CASE WHEN wake_at > ?2 AND wake_at IS NOT expires THEN 7 ELSE 0 END,
    wake_at = CASE WHEN wake_at > ?2 AND wake_at IS NOT expires THEN wake_at ELSE expires END
WHERE key = ?1

-- name: stay_blocked
UPDATE {mail} SET wake_at = expires WHERE key = ?1

-- name: line_of
SELECT order_key, channel, to_agent FROM {mail} WHERE key = ?1 AND order_key IS NOT NULL

-- name: as_it_is
SELECT own_id, state FROM {mail} WHERE key = ?1

-- name: waiting_in_line
SELECT key FROM {mail} INDEXED BY ordered
WHERE order_key = ?1 AND channel = ?2 AND to_agent IS ?3 AND {in_order} AND from_agent = ?4

-- name: withdraw
UPDATE {mail} SET state = 10, token = token + 1, change = tick(), wake_at = NULL, owner = NULL, waiter = NULL,
    implied = 0, ledger = ledger || {told} || ?3
WHERE key = ?1 AND from_agent = ?2 AND state IN (0, 7, 9)

-- name: restore
INSERT INTO {mail} (key, state, token, change, wake_at, priority, to_agent, channel, from_agent, type, version, delivery_count,
    max_deliveries, sent_ms, expires, last_delivered_ms, claimed_by, correlation_id, chain_id, hop_count, lane, trace, error,
    idempotency_key, answer_to, replay_of, order_key, replaces, ledger, payload, own_id, expires_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26,
    ?27, ?28, ?29, ?30, ?31, ?32)

-- name: key_of_moved
SELECT key FROM {mail} INDEXED BY own_ids WHERE own_id = ?1

-- name: by_idempotency_key
SELECT key, own_id, to_agent, channel, type, payload FROM {mail} WHERE from_agent = ?1 AND idempotency_key = ?2 ORDER BY key

-- name: subscribers
SELECT agent_id FROM channel_subscriptions WHERE channel_name = ?1 ORDER BY agent_id

-- name: claim_general
SELECT {columns} FROM {mail} INDEXED BY live
WHERE live_agent = ?1 AND live_channel IS NULL AND {in_live} AND (expires IS NULL OR expires > ?2)
ORDER BY live_rank, key LIMIT ?3

-- name: claim_one
-- The best message in the default channel, and whether there is any in the others.
SELECT {columns}, EXISTS (SELECT 1 FROM {mail} AS other INDEXED BY ready_elsewhere
    WHERE other.to_agent = ?1 AND other.state = 0 AND other.channel <> 'general')
FROM {mail} INDEXED BY live
WHERE live_agent = ?1 AND live_channel IS NULL AND {in_live} AND (expires IS NULL OR expires > ?2)
ORDER BY live_rank, key LIMIT 1

-- name: claim_elsewhere
SELECT {columns} FROM {mail} INDEXED BY ready_elsewhere
WHERE to_agent = ?1 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?2)
ORDER BY priority DESC, key LIMIT ?3

-- name: claim_in_channel
SELECT {columns} FROM {mail} INDEXED BY ready_in_channel
WHERE to_agent = ?1 AND channel = ?4 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?2)
ORDER BY priority DESC, key LIMIT ?3

-- name: claim_for_anyone
SELECT {columns} FROM {mail} INDEXED BY live
WHERE live_agent IS NULL AND live_channel = ?1 AND {in_live} AND (expires IS NULL OR expires > ?2)
ORDER BY live_rank, key LIMIT ?3

-- name: claim_one_in_channel
-- The best message in a channel that is for any taker, and whether there is any there for the agent itself.
SELECT {columns}, EXISTS (SELECT 1 FROM {mail} AS other INDEXED BY ready_in_channel
    WHERE other.to_agent = ?3 AND other.channel = ?1 AND other.state = 0 AND other.channel <> 'general')
FROM {mail} INDEXED BY live
WHERE live_agent IS NULL AND live_channel = ?1 AND {in_live} AND (expires IS NULL OR expires > ?2)
ORDER BY live_rank, key LIMIT 1

-- name: claim_by_key
SELECT {columns} FROM {mail}
WHERE key = ?1 AND (to_agent IS NULL OR to_agent = ?2)
    AND (state = 8 OR (state = 0 AND (expires IS NULL OR expires > ?3)))

-- name: claim_answer
SELECT {columns} FROM {mail} INDEXED BY answers WHERE answer_to = ?1 AND state = 8 AND (to_agent IS NULL OR to_agent = ?2)
    AND (SELECT question.state FROM {mail} AS question WHERE question.key = ?1) = 3
LIMIT 1

-- name: take
UPDATE {mail} SET state = 1, token = token + 1, change = tick(), wake_at = ?2, delivery_count = delivery_count + 1,
    last_delivered_ms = ?3, claimed_by = ?4, owner = ?5, waiter = CASE WHEN state <> 8 THEN waiter END, implied = 1
WHERE key = ?1 AND state = ?6 AND {limits_known}

-- name: limits_known
-- A message is taken by the limits that its claimer knows (by their version, ?7), or not at all. An answer has none.
(?7 IS NULL OR {limits_version} = ?7)

-- name: limits_version
coalesce((SELECT version FROM {cells} WHERE name = 'limits'), 0)

-- name: take_and_ack
UPDATE {mail} SET state = 2, token = token + 1, change = tick(), wake_at = NULL, delivery_count = delivery_count + 1,
    last_delivered_ms = ?3, claimed_by = ?4, owner = NULL, waiter = NULL, implied = 2, ended_ms = ?3
WHERE key = ?1 AND state = ?6 AND {limits_known}

-- Limits (limiting.py). The index is made with the first limit of a room.

-- name: limited_schema
CREATE INDEX IF NOT EXISTS limited ON {mail} (channel, state, to_agent, priority DESC, key, from_agent, order_key)
    WHERE {in_limited};   -- serves: claim_limited, running, depth, ready_boxes

-- name: write_claims
-- With each change of the limits: their holders may not know them, and must not end them by `ack` alone.
UPDATE {mail} INDEXED BY live SET implied = 0, ledger = ledger || {told} WHERE {claims} AND implied = 1

-- name: in_limited
state IN (0, 1, 7, 9)

-- name: claim_limited
SELECT {columns} FROM {mail} INDEXED BY limited
WHERE channel = ?1 AND state = 0 AND {in_limited} AND to_agent IS ?2 AND (expires IS NULL OR expires > ?3)
    AND from_agent NOT IN (SELECT value FROM json_each(?5))
    AND (order_key IS NULL OR order_key NOT IN (SELECT value FROM json_each(?6)))
ORDER BY priority DESC, key LIMIT ?4

-- name: used_up
-- The buckets of a rate that let nothing pass now. (A number that is none counts as full, as in gates.py.)
SELECT name FROM {cells} WHERE {in_used_up}

-- name: in_used_up
name > ?1 AND name < ?2 AND CAST(value AS REAL) > ?3 AND CAST(value AS REAL) < 9.2e18

-- name: first_to_open
-- Of those that keep a message of a mailbox waiting, which is full again first.
SELECT min(CAST(value AS REAL)) FROM {cells} WHERE {in_used_up} AND substr(name, length(?1) + 1) IN (
    SELECT CASE ?6 WHEN 'sender' THEN from_agent ELSE order_key END FROM {mail} INDEXED BY limited
    WHERE channel = ?4 AND state = 0 AND {in_limited} AND to_agent IS ?5)

-- name: running
SELECT from_agent, order_key FROM {mail} INDEXED BY limited
WHERE channel = ?1 AND state = 1 AND {in_limited} AND answer_to IS NULL

-- name: depth
SELECT count(*) FROM (SELECT 1 FROM {mail} INDEXED BY limited
    WHERE channel = ?1 AND state IN (0, 7, 9) AND {in_limited} AND to_agent IS ?2 LIMIT ?3)

-- name: group_of
SELECT state, channel, from_agent, order_key, answer_to FROM {mail} WHERE key = ?1

-- name: channels_of_agent
-- The channels, but for the default one, in which something is ready for an agent: one search for each (a loose index scan).
WITH RECURSIVE found (channel) AS (
    SELECT min(channel) FROM {mail} INDEXED BY ready_in_channel
        WHERE to_agent = ?1 AND state = 0 AND channel <> 'general'
    UNION ALL
    SELECT (SELECT min(channel) FROM {mail} INDEXED BY ready_in_channel
        WHERE to_agent = ?1 AND channel > found.channel AND state = 0 AND channel <> 'general')
    FROM found WHERE found.channel IS NOT NULL)
SELECT channel FROM found WHERE channel IS NOT NULL

-- name: ready_boxes_of_channel
-- The recipients (or nobody) for which something is ready in a channel, in the same way.
WITH RECURSIVE found (to_agent) AS (
    SELECT min(to_agent) FROM {mail} INDEXED BY limited WHERE channel = ?1 AND state = 0 AND {in_limited} AND to_agent > ''
    UNION ALL
    SELECT (SELECT min(to_agent) FROM {mail} INDEXED BY limited
        WHERE channel = ?1 AND state = 0 AND {in_limited} AND to_agent > found.to_agent)
    FROM found WHERE found.to_agent IS NOT NULL)
SELECT to_agent, ?1 FROM found WHERE to_agent IS NOT NULL
UNION ALL
SELECT NULL, ?1 WHERE EXISTS (SELECT 1 FROM {mail} INDEXED BY limited
    WHERE channel = ?1 AND state = 0 AND {in_limited} AND to_agent IS NULL)

-- name: ready_boxes
SELECT DISTINCT to_agent, channel FROM {mail} INDEXED BY limited WHERE state = 0 AND {in_limited}

-- name: timers
(SELECT min(wake_at) FROM {mail} INDEXED BY timers WHERE wake_at IS NOT NULL AND state <> 1),
    (SELECT min(live_rank) FROM {mail} INDEXED BY live WHERE {claims})

-- name: next_timers
SELECT {timers}

-- name: look
-- Whether there is anything for an agent, and when the next timers run out: all that a claimer needs to know that expects nothing.
SELECT EXISTS (SELECT 1 FROM {mail} INDEXED BY live
        WHERE live_agent = ?1 AND live_channel IS NULL AND {in_live} AND (expires IS NULL OR expires > ?2))
    OR EXISTS (SELECT 1 FROM {mail} INDEXED BY ready_elsewhere
        WHERE to_agent = ?1 AND state = 0 AND channel <> 'general' AND (expires IS NULL OR expires > ?2)),
    {timers}

-- name: due
SELECT key, own_id, state, expires, delivery_count, max_deliveries, to_agent, channel, order_key FROM {mail} INDEXED BY timers
WHERE wake_at <= ?1 AND state <> 1 ORDER BY wake_at LIMIT 500

-- name: ended_leases
SELECT key, own_id, state, expires, delivery_count, max_deliveries, to_agent, channel, order_key FROM {mail} INDEXED BY live
WHERE {claims} AND live_rank <= ?1 ORDER BY live_rank LIMIT 500

-- name: make_ready
UPDATE {mail} SET state = 0, wake_at = expires WHERE key = ?1

-- name: expire
UPDATE {mail} SET state = 5, change = tick(), wake_at = NULL, owner = NULL, waiter = NULL, error = ?2,
    implied = 0, ledger = ledger || {told} || ?3
WHERE key = ?1

-- name: release
-- The owner stays with a message whose lease has ended, for it may still extend it; one that is gone does not.
UPDATE {mail} SET state = 0, change = tick(), wake_at = expires, owner = CASE WHEN ?3 THEN owner END,
    implied = 0, ledger = ledger || {told} || ?2
WHERE key = ?1

-- name: bury
UPDATE {mail} SET state = 6, change = tick(), wake_at = NULL, owner = NULL, waiter = NULL, error = ?2,
    implied = 0, ledger = ledger || {told} || ?3
WHERE key = ?1

-- name: ack
-- The usual end of a message: all that its ledger says stands in other columns, and none waits behind it. Its holder knows
-- the limits: it claimed by them, and a change of the limits writes the ledgers of all claims (write_claims).
UPDATE {mail} SET state = 2, change = tick(), wake_at = NULL, owner = NULL, waiter = NULL, implied = 2, ended_ms = ?4
WHERE key = ?1 AND token = ?2 AND claimed_by = ?3 AND state = 1 AND implied = 1 AND order_key IS NULL

-- name: finish
UPDATE {mail} SET state = ?3, change = tick(), wake_at = NULL, owner = NULL, waiter = NULL, error = coalesce(?4, error),
    implied = 0, ledger = ledger || {told} || ?5
WHERE key = ?1 AND token = ?2 AND state IN (0, 1)

-- name: finish_alone
-- In a statement of its own, where no other message waits behind it and the limits are known (by their version, ?6).
{finish} AND order_key IS NULL AND {limits_version} = ?6

-- name: held
SELECT delivery_count, max_deliveries, expires, to_agent, channel, waiter, order_key FROM {mail}
WHERE key = ?1 AND token = ?2 AND state IN (0, 1)

-- name: retry
UPDATE {mail} SET state = ?2, token = token + 1, change = tick(), wake_at = ?3, owner = NULL, error = ?4,
    implied = 0, ledger = ledger || {told} || ?5
WHERE key = ?1

-- name: return
UPDATE {mail} SET state = 0, token = token + 1, change = tick(), wake_at = expires, delivery_count = delivery_count - 1,
    claimed_by = NULL, owner = NULL, implied = 0, ledger = ledger || {told} || ?2
WHERE key = ?1

-- name: extend
UPDATE {mail} SET state = 1, change = tick(), wake_at = ?3, implied = 0, ledger = ledger || {told} || ?4
WHERE key = ?1 AND token = ?2 AND state IN (0, 1)

-- name: heartbeat
-- No change of the room: neither its feed nor its ledger tells of it, and nobody is woken.
UPDATE {mail} SET wake_at = max(wake_at, ?3) WHERE key = ?1 AND token = ?2 AND state = 1

-- name: note
UPDATE {mail} SET change = tick(), implied = CASE WHEN length(ledger) < 65536 THEN 0 ELSE implied END,
    ledger = CASE WHEN length(ledger) < 65536 THEN ledger || {told} || ?2 ELSE ledger END
WHERE key = ?1

-- name: waiter_of
SELECT waiter FROM {mail} WHERE key = ?1 AND waiter IS NOT NULL AND state IN (0, 1, 7, 9)

-- name: stop_waiting
UPDATE {mail} SET waiter = NULL, change = tick(), implied = 0, ledger = ledger || {told} || ?2
WHERE key = ?1 AND waiter IS NOT NULL AND state IN (0, 1, 7, 9)

-- name: unhold
UPDATE {mail} SET state = 0, waiter = NULL, change = tick(), wake_at = expires WHERE answer_to = ?1 AND state = 8
RETURNING to_agent

-- name: found
SELECT {columns} FROM {mail}

-- name: in_chain
-- What a message led to. Answers stand in no index of chains: they are found by what they answer.
WITH RECURSIVE chain (key) AS (
    SELECT :chain UNION SELECT key FROM {mail} INDEXED BY chains WHERE chain_id = :chain_id AND answer_to IS NULL
    UNION SELECT answer.key FROM chain CROSS JOIN {mail} AS answer INDEXED BY answers ON answer.answer_to = chain.key)
SELECT key FROM chain

-- name: count_found
SELECT count(*) FROM {mail}

-- name: get
SELECT {columns}, ledger FROM {mail} WHERE key = ?1

-- name: requeue
UPDATE {mail} SET state = CASE WHEN order_key IS NOT NULL AND EXISTS (SELECT 1 FROM {mail} AS other INDEXED BY ordered
        WHERE other.order_key = {mail}.order_key AND other.channel = {mail}.channel AND other.to_agent IS {mail}.to_agent
            AND other.order_key IS NOT NULL AND other.state IN (0, 1, 7, 9)) THEN 9 ELSE 0 END, token = token + 1, change = tick(), delivery_count = 0, error = NULL, claimed_by = NULL,
    expires = CASE WHEN expires > ?2 THEN expires END, wake_at = CASE WHEN expires > ?2 THEN expires END,
    implied = 0, ledger = ledger || {told} || ?3
WHERE key = ?1 AND state IN (4, 5, 6) RETURNING to_agent, channel

-- name: stored_after
SELECT {columns} FROM {mail} WHERE key > ?1 ORDER BY key LIMIT ?2

-- name: changed_after
SELECT {columns}, ledger FROM {mail} INDEXED BY changed WHERE change > ?1 AND state <> 1 ORDER BY change LIMIT ?2

-- name: claimed_after
-- Goes through everything that is claimed just now and sorts it: those are few, and sparing each claim an index is worth it.
SELECT {columns}, ledger FROM {mail} INDEXED BY live WHERE {claims} AND change > ?1 ORDER BY change LIMIT ?2

-- name: processes
SELECT id, name FROM processes

-- name: process_add
INSERT INTO processes (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id

-- name: process_forget
DELETE FROM processes WHERE id = ?1

-- name: claims_of_process
SELECT key, own_id, expires, delivery_count, max_deliveries, to_agent, channel, order_key FROM {mail} INDEXED BY live
WHERE {claims} AND owner = ?1

-- name: waits_of_process
SELECT key, state, to_agent FROM {mail} WHERE waiter = ?1

-- name: unhold_by_key
UPDATE {mail} SET state = 0, waiter = NULL, change = tick(), wake_at = expires WHERE key = ?1

-- name: cell_read
SELECT name, version, value FROM {cells} WHERE name = ?1

-- name: cell_put
INSERT INTO {cells} (name, version, value) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET version = max(excluded.version, version + 1), value = excluded.value RETURNING version

-- name: cell_delete
DELETE FROM {cells} WHERE name = ?1 RETURNING version

-- name: cell_floor
SELECT coalesce((SELECT value FROM meta WHERE name = 'cell floor'), 0)

-- name: raise_cell_floor
INSERT INTO meta (name, value) VALUES ('cell floor', ?1) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- name: cell_is_kept
-- Whether a version that was once written is still there, or a newer one, or was deleted since (which leaves a floor above it).
SELECT EXISTS (SELECT 1 FROM {cells} WHERE name = ?1 AND version >= ?2)
    OR EXISTS (SELECT 1 FROM meta WHERE name = 'cell floor' AND value > ?2)

-- name: cell_scan
SELECT name, version, value FROM {cells} WHERE name >= ?1 AND name < ?2 ORDER BY name

-- name: subscribe
INSERT INTO channel_subscriptions (channel_name, agent_id, subscribed_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING

-- name: unsubscribe
DELETE FROM channel_subscriptions WHERE channel_name = ?1 AND agent_id = ?2 RETURNING agent_id

-- name: subscriptions
SELECT channel_name, agent_id, subscribed_at FROM channel_subscriptions ORDER BY channel_name, agent_id

-- name: count_ready_general
SELECT live_agent, 'general', count(*), min(key) FROM {mail} INDEXED BY live
WHERE live_agent IS NOT NULL AND {in_live} GROUP BY live_agent

-- name: count_ready_in_channel
SELECT to_agent, channel, count(*), min(key) FROM {mail} INDEXED BY ready_in_channel
WHERE state = 0 AND channel <> 'general' AND to_agent IS NOT NULL GROUP BY to_agent, channel

-- name: count_ready_for_anyone
SELECT NULL, live_channel, count(*), min(key) FROM {mail} INDEXED BY live
WHERE live_agent IS NULL AND live_channel IS NOT NULL AND {in_live} GROUP BY live_channel

-- name: count_finished
-- The most are acked: those are what is left of all, which SQLite counts faster than it tells them apart.
SELECT state, count(*) FROM {mail} INDEXED BY changed WHERE change IS NOT NULL AND state <> 1 AND state <> 2 GROUP BY state
UNION ALL SELECT -1, count(*) FROM {mail} INDEXED BY changed WHERE change IS NOT NULL AND state <> 1

-- name: count_blocked
SELECT to_agent, channel, count(*), min(key) FROM {mail} INDEXED BY ordered
WHERE {in_order} AND state = 9 GROUP BY to_agent, channel

-- name: in_finished
(state BETWEEN 2 AND 6 OR state = 10)

-- name: counted_schema
-- Remembered figures (figures.py), made by the housekeeping of a room with many messages. No message pays for them on its
-- way: rounds add up what was stored and what ended since the round before, and only what takes a message out again
-- (`delete`), or brings it back to life (`requeue`, `note`, `restore`), says so here.
CREATE TABLE counted (
    to_agent TEXT NOT NULL,                 -- '': nobody in particular
    channel TEXT NOT NULL,
    state INTEGER NOT NULL,                 -- 2 to 6, 10: finished messages, with a `change` up to 'counted changes' (meta);
    messages INTEGER NOT NULL,              -- -1: all that are kept, in whatever state, with a key up to 'counted keys'
    PRIMARY KEY (to_agent, channel, state)
) WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('counted keys', 0), ('counted changes', 0), ('counted since', 0)

-- name: counted_marks
SELECT (SELECT value FROM meta WHERE name = 'counted keys'), (SELECT value FROM meta WHERE name = 'counted changes'),
    (SELECT value FROM meta WHERE name = 'counted since')

-- name: uncounted
-- How much came since, up to a number.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {mail} WHERE key > ?1 LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM {mail} INDEXED BY changed WHERE change > ?2 AND state <> 1 LIMIT ?3))

-- name: next_to_count
SELECT (SELECT max(key) FROM (SELECT key FROM {mail} WHERE key > ?1 ORDER BY key LIMIT ?3)),
    (SELECT max(change) FROM (SELECT change FROM {mail} INDEXED BY changed
        WHERE change > ?2 AND state <> 1 ORDER BY change LIMIT ?3))

-- name: count_up
INSERT INTO counted
SELECT coalesce(to_agent, ''), channel, -1, count(*) FROM {mail} WHERE key > ?1 AND key <= ?3 GROUP BY 1, 2
UNION ALL
SELECT coalesce(to_agent, ''), channel, state, count(*) FROM {mail} INDEXED BY changed
    WHERE change > ?2 AND change <= ?4 AND state <> 1 AND {in_finished} GROUP BY 1, 2, 3
ON CONFLICT DO UPDATE SET messages = messages + excluded.messages

-- name: count_out
-- Messages that are about to be deleted (?3), or changed in their end: what was counted of them.
INSERT INTO counted
SELECT coalesce(to_agent, ''), channel, -1, -count(*) FROM {mail}
    WHERE ?4 AND key IN (SELECT value FROM json_each(?3)) AND key <= ?1 GROUP BY 1, 2
UNION ALL
SELECT coalesce(to_agent, ''), channel, state, -count(*) FROM {mail}
    WHERE key IN (SELECT value FROM json_each(?3)) AND change <= ?2 AND {in_finished} GROUP BY 1, 2, 3
ON CONFLICT DO UPDATE SET messages = messages + excluded.messages

-- name: count_in
-- A message that was restored under a key of long ago.
INSERT INTO counted SELECT coalesce(to_agent, ''), channel, -1, 1 FROM {mail} WHERE key = ?3 AND key <= ?1 AND ?2 IS NOT NULL
ON CONFLICT DO UPDATE SET messages = messages + excluded.messages

-- name: counted_finished
SELECT state, sum(messages) FROM (
    SELECT state, messages FROM counted WHERE state <> -1
    UNION ALL SELECT state, 1 FROM {mail} INDEXED BY changed WHERE change > ?2 AND state <> 1 AND {in_finished} AND ?1 IS NOT NULL)
GROUP BY state

-- name: counted_boxes
SELECT nullif(to_agent, ''), channel, state, sum(messages) FROM (
    SELECT to_agent, channel, state, messages FROM counted
    UNION ALL SELECT coalesce(to_agent, ''), channel, -1, 1 FROM {mail} WHERE key > ?1
    UNION ALL SELECT coalesce(to_agent, ''), channel, state, 1 FROM {mail} INDEXED BY changed
        WHERE change > ?2 AND state <> 1 AND {in_finished})
GROUP BY 1, 2, 3

-- name: open_elsewhere
-- What is kept and not finished, but neither ready nor behind its order key.
SELECT to_agent, channel, state, count(*) FROM (
    SELECT to_agent, channel, state FROM {mail} INDEXED BY live WHERE {claims}
    UNION ALL SELECT to_agent, channel, state FROM {mail} INDEXED BY timers WHERE wake_at IS NOT NULL AND state <> 1 AND state = 7
    UNION ALL SELECT to_agent, channel, state FROM {mail} INDEXED BY waiting WHERE waiter IS NOT NULL AND state = 8)
GROUP BY 1, 2, 3

-- name: ready_fronts
-- The first message of each priority in each mailbox, of what is ready: one search for each (loose index scans).
WITH RECURSIVE general (box, rank, first) AS (
    SELECT live_agent, live_rank, key FROM {mail} WHERE key = (SELECT key FROM {mail} INDEXED BY live
        WHERE live_agent IS NOT NULL AND {in_live} ORDER BY live_agent, live_channel, live_rank, key LIMIT 1)
    UNION ALL
    SELECT next.live_agent, next.live_rank, next.key FROM general CROSS JOIN {mail} AS next ON next.key = coalesce(
        (SELECT key FROM {mail} INDEXED BY live WHERE live_agent = box AND live_channel IS NULL AND live_rank > rank AND {in_live}
            ORDER BY live_rank, key LIMIT 1),
        (SELECT key FROM {mail} INDEXED BY live WHERE live_agent > box AND {in_live}
            ORDER BY live_agent, live_channel, live_rank, key LIMIT 1))),
for_anyone (box, rank, first) AS (
    SELECT live_channel, live_rank, key FROM {mail} WHERE key = (SELECT key FROM {mail} INDEXED BY live
        WHERE live_agent IS NULL AND live_channel IS NOT NULL AND {in_live} ORDER BY live_channel, live_rank, key LIMIT 1)
    UNION ALL
    SELECT next.live_channel, next.live_rank, next.key FROM for_anyone CROSS JOIN {mail} AS next ON next.key = coalesce(
        (SELECT key FROM {mail} INDEXED BY live WHERE live_agent IS NULL AND live_channel = box AND live_rank > rank AND {in_live}
            ORDER BY live_rank, key LIMIT 1),
        (SELECT key FROM {mail} INDEXED BY live WHERE live_agent IS NULL AND live_channel > box AND {in_live}
            ORDER BY live_channel, live_rank, key LIMIT 1))),
in_channel (box, place, urgency, first) AS (
    SELECT to_agent, channel, priority, key FROM {mail} WHERE key = (SELECT key FROM {mail} INDEXED BY ready_in_channel
        WHERE {in_ready_in_channel} ORDER BY to_agent, channel, priority DESC, key LIMIT 1)
    UNION ALL
    SELECT next.to_agent, next.channel, next.priority, next.key FROM in_channel CROSS JOIN {mail} AS next ON next.key = coalesce(
        (SELECT key FROM {mail} INDEXED BY ready_in_channel WHERE to_agent = box AND channel = place AND priority < urgency
            AND {in_ready_in_channel} ORDER BY priority DESC, key LIMIT 1),
        (SELECT key FROM {mail} INDEXED BY ready_in_channel WHERE to_agent = box AND channel > place
            AND {in_ready_in_channel} ORDER BY channel, priority DESC, key LIMIT 1),
        (SELECT key FROM {mail} INDEXED BY ready_in_channel WHERE to_agent > box
            AND {in_ready_in_channel} ORDER BY to_agent, channel, priority DESC, key LIMIT 1)))
SELECT box, 'general', rank, first FROM general
UNION ALL SELECT NULL, box, rank, first FROM for_anyone
UNION ALL SELECT box, place, -urgency, first FROM in_channel

-- name: in_ready_in_channel
state = 0 AND channel <> 'general' AND to_agent IS NOT NULL

-- name: sent_at
SELECT key, sent_ms FROM {mail} WHERE key IN (SELECT value FROM json_each(?1))

-- name: late
-- The keys of all that something was due for, and nobody came by yet.
SELECT key FROM {mail} INDEXED BY timers WHERE wake_at <= :now AND state <> 1 UNION ALL {late_claims}

-- name: delayed
SELECT key FROM {mail} INDEXED BY timers WHERE wake_at IS NOT NULL AND state <> 1 AND state = 7

-- name: awaited
SELECT key FROM {mail} INDEXED BY waiting WHERE waiter IS NOT NULL AND state = 8

-- name: blocked
SELECT key FROM {mail} INDEXED BY ordered WHERE {in_order} AND state = 9

-- name: asked
SELECT key FROM {mail} INDEXED BY waiting WHERE waiter IS NOT NULL

-- name: set_aside
SELECT key FROM {mail} WHERE state = 6 UNION ALL {late_claims}

-- name: claimed
SELECT key FROM {mail} INDEXED BY live WHERE {claims}

-- name: keys
SELECT key, state, order_key, channel, to_agent FROM {mail}

-- name: count_all
SELECT count(*) FROM {mail}

-- name: late_claims
-- Claims whose lease has ended, or whose process is gone: a reader puts the numbers of such processes for `gone` (reading.py).
-- Without any the second condition is none, and the index tells the rest.
SELECT key FROM {mail} INDEXED BY live WHERE {claims} AND (live_rank <= :now OR owner IN (/*gone*/))

-- name: overdue
SELECT state, {judged}, to_agent, channel, count(*), min(key) FROM {mail} WHERE key IN ({late}) GROUP BY 1, 2, 3, 4

-- name: judged
CASE WHEN state IN (0, 7, 9) AND expires <= :now THEN 5
    WHEN state = 7 AND wake_at <= :now THEN 0
    WHEN state = 1 AND (wake_at <= :now OR owner IN (/*gone*/)) THEN
        CASE WHEN delivery_count >= max_deliveries THEN 6 WHEN expires <= :now THEN 5 ELSE 0 END
    ELSE state END

-- name: oldest_finished
SELECT key FROM {mail} INDEXED BY changed WHERE change IS NOT NULL AND change <= ?1 AND state <> 1 AND (state BETWEEN 2 AND 5 OR state = 10)
ORDER BY change LIMIT ?2

-- name: tally_up
INSERT INTO tally (agent, processed) SELECT claimed_by, count(*) FROM {mail}
WHERE key IN (SELECT value FROM json_each(?1)) AND claimed_by IS NOT NULL AND state IN (2, 3, 4) GROUP BY claimed_by
ON CONFLICT (agent) DO UPDATE SET processed = processed + excluded.processed

-- name: tally_errors
INSERT INTO tally (agent, errors) SELECT claimed_by, count(*) FROM {mail}
WHERE key IN (SELECT value FROM json_each(?1)) AND claimed_by IS NOT NULL AND state IN (0, 6, 7) GROUP BY claimed_by
ON CONFLICT (agent) DO UPDATE SET errors = errors + excluded.errors

-- name: work_of
SELECT coalesce((SELECT processed FROM tally WHERE agent = ?1), 0) + count(*) FILTER (WHERE state IN (2, 3, 4)),
    coalesce((SELECT errors FROM tally WHERE agent = ?1), 0) + count(*) FILTER (WHERE state IN (0, 6, 7))
FROM {mail} INDEXED BY changed WHERE change IS NOT NULL AND state <> 1 AND claimed_by = ?1

-- name: raise_floor
INSERT INTO meta (name, value) SELECT 'floor', max(max(key), coalesce(max(change), 0)) + 1 FROM {mail}
WHERE key IN (SELECT value FROM json_each(?1)) HAVING count(*) > 0
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- name: delete
DELETE FROM {mail} WHERE key IN (SELECT value FROM json_each(?1)) RETURNING key

-- Full-text search (search.py), made by the first search of a room and brought up to date by the next ones and by sweeps.
-- No trigger keeps it: a send pays nothing. `mail_words` holds no text of its own. To take a message out of it FTS5 must be
-- told the same words again, so they come from columns that no statement changes (tests/stores/test_sqlite_search.py); a
-- statement that did would have to take the message out before, as `delete` does, and set 'search mark' back.

-- name: search_schema
CREATE VIRTUAL TABLE mail_words USING fts5 (body, sender, recipient, place, kind,
    content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 2');
CREATE TABLE mail_hours (                   -- where the messages of each hour of the wall clock lie
    hour INTEGER PRIMARY KEY,               -- since 1970
    first INTEGER NOT NULL,                 -- the smallest key among them, and the largest
    last INTEGER NOT NULL
);
INSERT INTO meta (name, value) VALUES ('search mark', 0);

-- name: said
key, coalesce((SELECT group_concat(atom, char(10)) FROM json_tree(iif(json_valid(payload), payload, '""'))
    WHERE json_tree.type IN ('text', 'integer', 'real')), ''), from_agent, coalesce(to_agent, 'anyone'), channel, {mail}.type

-- name: search_batch
-- Where so many messages behind a key end, or as many as have that many bytes together, but one at least.
SELECT max(key) FROM (SELECT key, octet_length(payload) AS own, sum(octet_length(payload)) OVER (ORDER BY key) AS size
    FROM {mail} WHERE key > ?1 ORDER BY key LIMIT ?2) WHERE size - own < ?3

-- name: words_add
INSERT INTO mail_words (rowid, body, sender, recipient, place, kind) SELECT {said} FROM {mail} WHERE key > ?1 AND key <= ?2

-- name: words_remove
INSERT INTO mail_words (mail_words, rowid, body, sender, recipient, place, kind)
SELECT 'delete', {said} FROM {mail} WHERE key IN (SELECT value FROM json_each(?1)) AND key <= ?2

-- name: words_option
INSERT INTO mail_words (mail_words, rank) VALUES (?1, ?2)

-- name: words_found
SELECT {columns} FROM mail_words CROSS JOIN {mail} ON {mail}.key = mail_words.rowid

-- name: hours_add
INSERT INTO mail_hours (hour, first, last) SELECT sent_ms / 3600000, min(key), max(key) FROM {mail}
WHERE key > ?1 AND key <= ?2 GROUP BY 1
ON CONFLICT (hour) DO UPDATE SET first = min(first, excluded.first), last = max(last, excluded.last)

-- name: hours_after
SELECT min(first) FROM mail_hours WHERE hour >= ?1

-- name: hours_before
SELECT max(last) FROM mail_hours WHERE hour <= ?1

-- name: last_key
SELECT coalesce(max(key), 0) FROM {mail}

-- name: count_behind
SELECT count(*) FROM {mail} WHERE key > ?1

-- name: meta_write
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: meta_read
SELECT value FROM meta WHERE name = ?1

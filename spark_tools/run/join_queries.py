"""The queries of `spark_tools/run/join_check.py`, and the shapes of the tables they begin with.

A name in braces is a table, or a number of the run. `number` is that of a group's authority; its
replicas have numbers below 0.
"""

import pyarrow as pa

from spark_tools.files.columns import MAY_FOLLOW, OUTCOMES
from spark_tools.judge.account import FACT_CLASSES, STATES

_LATENESS_MAX = 2**52

NODES_SCHEMA = pa.schema(
    {
        "cluster": pa.string(),
        "group": pa.string(),
        "node": pa.string(),
        "number": pa.int64(),
        "log_next": pa.int64(),
        "filed_sequence": pa.int64(),
        "deleted_from": pa.int64(),
        "tail_missing": pa.bool_(),
        "segments_missing": pa.bool_(),
    }
)
READABLE_SCHEMA = pa.schema({"number": pa.int64(), "first": pa.int64(), "after": pa.int64()})
SIDES_SCHEMA = pa.schema(
    {"number": pa.int64(), "replica": pa.int64(), "sign": pa.int64(), "shared_next": pa.int64()}
)
SEGMENTS_SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "start": pa.int64(),
        "end": pa.int64(),
        "facts_file": pa.string(),
        "last_sequence": pa.int64(),
        "is_sealed": pa.bool_(),
        "is_deleted": pa.bool_(),
        "counts": pa.bool_(),
        "rows_missing": pa.bool_(),
        "facts_missing": pa.bool_(),
    }
)

# A unit is a segment, or an hour of minutes that no segment covers; these may begin alike. What is
# loose (in no segment yet) is of the segment that covers its minute; where that is deleted, or not
# asked for, it is nobody's.

OUTCOMES_SQL = "array(" + ", ".join(f"'{name}'" for name in OUTCOMES) + ")"

HOURS = """
SELECT *, explode(sequence(start - pmod(start, 60), end - 1, 60L)) AS hour FROM {segments}
"""

MESSAGES = """
SELECT /*+ BROADCAST(g), BROADCAST(s) */
    g.number, s.start * 2 + 1 AS unit, m.sequence, m.due_ms, m.filed_minute AS minute, m.subject,
    m.size, m.id_hash, s.end, s.is_sealed,
    s.facts_missing OR (g.tail_missing AND NOT s.is_sealed) AS facts_missing,
    m.place, true AS is_filed
FROM (SELECT *, monotonically_increasing_id() AS place FROM {schedule} WHERE damage IS NULL) m
JOIN {of_nodes} g ON m.cluster = g.cluster AND m.group = g.group AND m.node = g.node
JOIN {segments} s ON s.number = g.number AND s.start = m.start_minute AND s.counts
UNION ALL
SELECT /*+ BROADCAST(g), BROADCAST(s) */
    g.number, coalesce(s.start * 2 + 1, m.hour * 2), m.sequence, m.due_ms, m.filed_minute,
    m.subject, m.size, m.id_hash, coalesce(s.end, m.hour + 60), coalesce(s.is_sealed, false),
    coalesce(s.facts_missing, g.segments_missing)
        OR (g.tail_missing AND NOT coalesce(s.is_sealed, false)), m.place, false
FROM (
    SELECT *, filed_minute - pmod(filed_minute, 60) AS hour,
        -- Behind whatever is filed.
        monotonically_increasing_id() + 4611686018427387904 AS place
    FROM {message}
    WHERE damage IS NULL AND filed_minute >= {from_minute} AND filed_minute < {to_minute}
) m
JOIN {of_nodes} g ON m.cluster = g.cluster AND m.group = g.group AND m.node = g.node
LEFT JOIN {hours} s
    ON s.number = g.number AND s.hour = m.hour AND m.filed_minute >= s.start
    AND m.filed_minute < s.end
WHERE s.counts IS NULL OR s.counts
"""

# Of facts that are alike in everything one counts, the others are repeated. Of those about one
# message the least `rank` counts. Where a fact without a message can have one that nobody can read,
# it is not explained.
FACTS = """
SELECT number, unit, sequence, at_ms, outcome, target, count(*) AS times, min(minute) AS own_minute,
    first(is_explained) AS is_explained,
    struct(outcome != 1 AS is_other, at_ms, outcome, target) AS rank
FROM (
    SELECT /*+ BROADCAST(g), BROADCAST(s) */
        g.number, s.start * 2 + 1 AS unit, f.sequence, f.at_ms, f.target,
        array_position({outcomes}, f.outcome) AS outcome,
        greatest(s.start, least(f.filed_minute, s.end - 1)) AS minute,
        NOT s.rows_missing AND f.sequence < g.log_next
            AND NOT (g.tail_missing AND f.sequence > g.filed_sequence) AS is_explained
    FROM {dispatch} f
    JOIN {of_nodes} g ON f.cluster = g.cluster AND f.group = g.group AND f.node = g.node
    JOIN {segments} s ON s.number = g.number AND s.facts_file = f.file AND s.counts
    WHERE f.damage IS NULL AND f.is_filed
    UNION ALL
    SELECT /*+ BROADCAST(g), BROADCAST(s) */
        g.number, coalesce(s.start * 2 + 1, f.hour * 2), f.sequence, f.at_ms, f.target,
        array_position({outcomes}, f.outcome), f.filed_minute,
        NOT coalesce(s.rows_missing, g.segments_missing) AND f.sequence < g.log_next
            AND NOT (g.tail_missing AND f.sequence > g.filed_sequence)
    FROM (
        SELECT *, filed_minute - pmod(filed_minute, 60) AS hour
        FROM {dispatch} WHERE damage IS NULL AND NOT is_filed
    ) f
    JOIN {of_nodes} g ON f.cluster = g.cluster AND f.group = g.group AND f.node = g.node
    LEFT JOIN {hours} s
        ON s.number = g.number AND s.hour = f.hour AND f.filed_minute >= s.start
        AND f.filed_minute < s.end
    WHERE s.counts IS NULL OR s.counts
)
GROUP BY number, unit, sequence, at_ms, outcome, target
"""

_FIRST = "SELECT number, unit, sequence, min(rank) AS first FROM {facts} GROUP BY 1, 2, 3"

# What was sent past due has no lateness: it was filed behind its due minute, and is not early.
JUDGED = f"""
SELECT *, CASE WHEN state = 'delivered' AND (at_ms < due_ms OR minute * 60000 <= due_ms)
    THEN at_ms - due_ms END AS late
FROM (
    SELECT number, minute, minute - pmod(minute, 60) AS hour, subject, size, due_ms,
        due_ms >= end * 60000 AS is_misfiled, first.at_ms AS at_ms, first.target AS target,
        CASE
            WHEN first IS NOT NULL
                THEN coalesce(get({{outcomes}}, CAST(first.outcome - 1 AS INT)), 'unknown')
            WHEN NOT is_sealed AND due_ms > {{watermark_ms}} THEN 'waiting'
            WHEN facts_missing THEN 'unknown'
            WHEN is_sealed OR {{final}} THEN 'lost'
            ELSE 'overdue'
        END AS state
    FROM {{messages}} LEFT JOIN ({_FIRST}) USING (number, unit, sequence)
    WHERE number >= 0 AND minute >= {{from_minute}} AND minute < {{to_minute}}
)
"""

# The buckets of docs/reconciliation.md, by the digits of a number in base two. What follows is of
# these counts, which are few where messages are many.
CELLS = f"""
SELECT number, hour, subject, target, state, is_misfiled, late < 0 AS is_early, late > {{most}} AS
    is_late, if(bounded < 8, bounded, 8 * digits + shiftright(bounded, digits - 4) - 32) AS bucket,
    max(late) AS latest_ms, count(*) AS times, sum(size) AS bytes
FROM (
    SELECT *, length(bin(bounded)) AS digits
    FROM (SELECT *, if(late >= 0, least(late, {_LATENESS_MAX}), NULL) AS bounded FROM {{judged}})
)
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""

SUBJECTS = f"""
SELECT number, hour, subject, sum(times) AS accepted, sum(bytes) AS bytes,
    sum(if(is_early, times, 0)) AS early,
    sum(if(state = 'delivered' AND is_early IS NULL, times, 0)) AS sent_past_due,
    sum(if(is_misfiled, times, 0)) AS misfiled,
    {", ".join(f"sum(if(state = '{name}', times, 0)) AS {name}" for name in STATES)}
FROM {{cells}} GROUP BY number, hour, subject
"""

# A fact is counted at the minute of its message: of the first row, if that is there twice.
TARGETS = f"""
SELECT number, minute - pmod(minute, 60) AS hour, target, sum(times) AS facts,
    sum(if(may_repeat, times - 1, 0)) AS repeated,
    sum(if(may_repeat, 0, times - 1)) + count_if(class = 'settled_twice') AS settled_twice,
    count_if(class = 'first' AND outcome = 1 AND at_ms < due_ms) AS early,
    {
    ", ".join(
        f"count_if(class = '{name}') AS {name}"
        for name in FACT_CLASSES
        if name not in {"repeated", "settled_twice"}
    )
},
    {
    ", ".join(
        f"sum(if(outcome = {number}, times, 0)) AS {name}"
        for number, name in enumerate(OUTCOMES, start=1)
    )
}
FROM (
    SELECT number, target, times, outcome, at_ms, message.due_ms AS due_ms,
        coalesce(message.minute, own_minute) AS minute,
        CASE
            WHEN message IS NULL THEN if(is_explained, 'phantom', 'unexplained')
            WHEN rank = first THEN 'first'
            WHEN outcome = 1 THEN 'duplicate'
            WHEN outcome IN {MAY_FOLLOW} AND first.outcome IN {MAY_FOLLOW} THEN 'other'
            ELSE 'settled_twice'
        END AS class,
        message IS NULL OR outcome IN {MAY_FOLLOW} AS may_repeat
    FROM {{facts}}
    JOIN ({_FIRST}) USING (number, unit, sequence)
    LEFT JOIN (
        SELECT number, unit, sequence, min_by(struct(minute, due_ms), place) AS message
        FROM {{messages}} GROUP BY number, unit, sequence
    ) USING (number, unit, sequence)
)
WHERE number >= 0 AND minute >= {{from_minute}} AND minute < {{to_minute}}
GROUP BY 1, 2, 3
"""

LATENESS = """
SELECT number, hour, {key}, bucket, sum(times) AS count, max(latest_ms) AS latest_ms
FROM {cells} WHERE bucket IS NOT NULL GROUP BY number, hour, {key}, bucket
"""

LATE = "SELECT coalesce(sum(times), 0) FROM {cells} WHERE is_late"

DOUBLED = """
SELECT number, sum(times - 1) AS doubled
FROM (
    SELECT number, sequence, count(*) AS times FROM {messages}
    WHERE number >= 0 AND minute >= {from_minute} AND minute < {to_minute}
    GROUP BY number, sequence
)
GROUP BY number
"""

# The message_log is read from its beginning, whatever the range: a row of the range may have a
# record that belongs elsewhere.
LOGGED = """
SELECT number, hour, subject, sum(altered) AS altered,
    sum(misfiled) AS misfiled_in_log, count_if(is_expected) AS records,
    count_if(is_gone OR (is_expected AND NOT is_there AND rows_missing)) AS unchecked,
    count_if(is_expected AND NOT is_there AND NOT rows_missing) AS missing
FROM (
    SELECT number, sequence, hour, subject, is_expected, is_gone, rows_missing,
        coalesce(bool_or(m.unit = r.unit), false) AS is_there,
        count_if(m.counts AND is_accepted AND (
            m.due_ms != r.due_ms OR m.size != r.size OR m.id_hash != r.id_hash)) AS altered,
        count_if(m.counts AND is_accepted AND m.due_ms < m.end * 60000
            AND (r.minute * 2 + 1 < m.unit OR r.minute >= m.end)) AS misfiled
    FROM (
        SELECT *, is_filed AND NOT is_lost AS is_expected, is_filed AND is_lost AS is_gone
        FROM (
            SELECT /*+ BROADCAST(g), BROADCAST(s) */
                g.number, l.sequence, l.hour, l.subject, l.due_ms, l.size, l.id_hash, l.is_accepted,
                l.filed_minute AS minute, s.start * 2 + 1 AS unit,
                coalesce(s.rows_missing, false) AS rows_missing,
                l.is_accepted AND filed_minute >= {from_minute} AND filed_minute < {to_minute} AND (
                    l.sequence <= g.filed_sequence OR coalesce(l.sequence <= s.last_sequence, false)
                ) AS is_filed,
                coalesce(s.is_deleted, g.segments_missing OR l.filed_minute < g.deleted_from)
                    AS is_lost
            FROM (
                SELECT *, filed_minute - pmod(filed_minute, 60) AS hour,
                    kind IN ('message', 'move') AS is_accepted
                FROM {records} WHERE damage IS NULL
            ) l
            JOIN {of_nodes} g ON l.cluster = g.cluster AND l.group = g.group AND l.node = g.node
            LEFT JOIN {hours} s
                ON s.number = g.number AND s.hour = l.hour AND l.filed_minute >= s.start
                AND l.filed_minute < s.end
        )
    ) r
    LEFT JOIN (
        SELECT number, sequence, unit, due_ms, size, id_hash, end,
            minute >= {from_minute} AND minute < {to_minute} AS counts
        FROM {messages} WHERE is_filed AND number >= 0
    ) m USING (number, sequence)
    GROUP BY number, sequence, hour, subject, is_expected, is_gone, rows_missing
)
GROUP BY number, hour, subject
"""

# A record of a fact is no row of {records}: whether a sequence that is not there is one of these,
# or cannot be read, {readable} tells.
UNLOGGED = """
SELECT /*+ BROADCAST(k) */ m.number, count(*) AS unlogged
FROM {messages} m
LEFT JOIN (
    SELECT /*+ BROADCAST(g) */ g.number, l.sequence, l.kind IN ('message', 'move') AS is_accepted
    FROM {records} l
    JOIN {of_nodes} g ON l.cluster = g.cluster AND l.group = g.group AND l.node = g.node
    WHERE l.damage IS NULL
) r ON m.number = r.number AND m.sequence = r.sequence
LEFT JOIN {readable} k
    ON m.number = k.number AND m.sequence >= k.first AND m.sequence < k.after
WHERE m.is_filed AND m.minute >= {from_minute} AND m.minute < {to_minute}
    AND NOT coalesce(r.is_accepted, k.number IS NULL)
GROUP BY m.number
"""

# What only one of two nodes has, or has more often, does not add up to nothing.
DIFFERING = """
SELECT replica, hour, sum(mine) AS authority_count, sum(other) AS replica_count
FROM (
    SELECT replica, hour, sum(sign) AS more, count_if(sign > 0) AS mine, count_if(sign < 0) AS other
    FROM (
        SELECT /*+ BROADCAST(s) */ s.replica, s.sign, c.*
        FROM ({compared}) c JOIN {of_sides} s ON c.number = s.number
        WHERE {shared}
    )
    GROUP BY replica, hour, {columns}
)
GROUP BY replica, hour HAVING max(abs(more)) > 0
"""

COMPARED = {
    "rows": (
        """
        SELECT number, minute - pmod(minute, 60) AS hour, sequence, due_ms, size, id_hash
        FROM {messages} WHERE minute >= {from_minute} AND minute < {to_minute}
        """,
        "sequence, due_ms, size, id_hash",
        # What is above one of them cannot have yet.
        "c.sequence < s.shared_next",
    ),
    "facts": (
        """
        SELECT number, own_minute - pmod(own_minute, 60) AS hour, sequence, at_ms, outcome, target
        FROM {facts} WHERE own_minute >= {from_minute} AND own_minute < {to_minute}
        """,
        "sequence, at_ms, outcome, target",
        "true",
    ),
}
"""By what is compared: what each node has, what must be alike, and of which rows."""

/* A session: members that fail together (src/postroom/sessions).

   What is modelled
     One record, changed by compare-and-set alone: how many were admitted, the first failure, the end. Members that join,
     wait, send, fail, are killed, and leave; an opener that closes the session or is killed. A change of the record is a
     reading and a writing with everything in between, and a new reading when the writing is refused. A member that waits
     is woken by every write of the record, and looks.

   What is left out
     Mailboxes, results, deadlines (a member that runs past its deadline is one that is killed), the `.failed` file, the
     search for deadlocks. That a send raises once the session is over is how a send is written here, and shows
     nothing: the tests of sessions do. That the opener, or the worker's parent, sees a killed worker is one step here. */

#ifndef MEMBERS
#define MEMBERS 3         /* member 0 is the opener */
#endif
#ifndef CRASHES
#define CRASHES 2
#endif

#define OPENER 0
#define NOBODY MEMBERS

mtype = { outside, joining, inside, failing, closing, aborted, left, killed };      /* where a member is */
mtype = { join, send, fail, close, crash, abort };                                  /* the steps */
mtype = { yes, refused };

/* The record. */
byte version, admitted;
byte failed_by = NOBODY;  /* the member whose failure stands */
bool ended;               /* its opener closed it */
#define OVER (failed_by != NOBODY || ended)

typedef Member {
    mtype is = outside;
    bool has_read;        /* in the middle of a change of the record, */
    byte version;         /* which it read in this version */
    byte aborts           /* not in the room: how often it was told of the failure */
};
Member member[MEMBERS];
byte crashes;
byte first = NOBODY;      /* not in the room: the first failure that was recorded */

#define PROMISE(name, holds) assert(holds)

inline every_promise() {
    PROMISE(9_the_first_failure_stands, failed_by == first);
    PROMISE(9_each_member_is_told_once, member[0].aborts <= 1 && member[MEMBERS - 1].aborts <= 1)
}

inline told(step, m, outcome) {
    every_promise();
    printf("%e %d %e\n", step, m, outcome)
}

inline read_record(m) { member[m].has_read = true; member[m].version = version }
inline unread(m) { member[m].has_read = false; member[m].version = 0 }

#define FRESH(m) (member[m].has_read && member[m].version == version)
#define STALE(m) (member[m].has_read && member[m].version != version)

inline record_failure(who) {
    if
    :: !OVER ->
        version++;
        PROMISE(9_the_first_failure_stands, failed_by == NOBODY && first == NOBODY);
        failed_by = who;
        first = who;
        told(fail, who, yes)
    :: else -> told(fail, who, refused)
    fi
}

proctype M(byte m) {
end: do
    /* Any change of the record begins with a reading; a stale one is thrown away. */
    :: d_step { (member[m].is == joining || member[m].is == failing || member[m].is == closing) && !member[m].has_read ->
                read_record(m) }
    :: d_step { STALE(m) -> unread(m) }

    /* Joining: its cell is written, then it is admitted, unless the session is over. */
    :: d_step { member[m].is == outside -> member[m].is = joining }
    :: d_step { member[m].is == joining && FRESH(m) ->
                if
                :: OVER -> member[m].is = left; told(join, m, refused)
                :: else ->
                    PROMISE(9_nobody_joins_what_is_over, !OVER);
                    version++; admitted++; member[m].is = inside; told(join, m, yes)
                fi;
                unread(m) }

    /* Inside it sends and waits. Both look at the record first; a wait ends when it is over. */
    :: d_step { member[m].is == inside && !OVER -> told(send, m, yes) }
    :: d_step { member[m].is == inside && OVER -> member[m].is = aborted; member[m].aborts++; told(abort, m, yes) }

    /* It raises, or it comes to its end; the opener's end is the session's. */
    :: d_step { member[m].is == inside -> member[m].is = failing }
    :: d_step { member[m].is == inside && m != OPENER -> member[m].is = left }
    :: d_step { member[m].is == inside && m == OPENER -> member[m].is = closing }
    :: d_step { member[m].is == failing && FRESH(m) -> record_failure(m); unread(m); member[m].is = aborted; member[m].aborts++ }
    :: d_step { member[m].is == closing && FRESH(m) -> version++; ended = true; member[m].is = left; told(close, m, yes); unread(m) }

    /* It is killed, at any moment. */
    :: d_step { crashes < CRASHES && (member[m].is == inside || member[m].is == failing || member[m].is == closing) ->
                crashes++; member[m].is = killed; unread(m); told(crash, m, yes) }
    od
}

/* A member that was killed is blamed by a living one: a worker by the opener, the opener by anybody. */
#define LIVES(m) (member[m].is == inside || member[m].is == failing)
#define SOMEBODY_LIVES (LIVES(0) || LIVES(1) || LIVES(MEMBERS - 1))

proctype Watch(byte m) {
    bool has_read;
    byte read_version;
end: do
    :: d_step { member[m].is == killed && SOMEBODY_LIVES && !OVER && !has_read -> has_read = true; read_version = version }
    :: d_step { has_read && read_version != version -> has_read = false; read_version = 0 }
    :: d_step { has_read && read_version == version -> record_failure(m); has_read = false; read_version = 0 }
    od
}

init {
    byte n;
    atomic {
        member[OPENER].is = inside;
        admitted = 1;
        for (n : 0 .. MEMBERS - 1) { run M(n); run Watch(n) };
        n = 0
    }
}

/* When there is a failure, every member is out of it after a while, and nobody waits on. */
#define ALL_OUT (member[0].is != inside && member[1].is != inside && member[MEMBERS - 1].is != inside)
ltl fail_together { always ((failed_by != NOBODY) implies eventually always ALL_OUT) }

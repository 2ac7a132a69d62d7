/* A session: members that fail together (src/postroom/sessions).

   What is modelled
     One record, changed by compare-and-set alone: how many were admitted, the first failure, the end. Members that join,
     wait, send, fail, are killed, and leave; an opener that closes the session or is killed. A change of the record is a
     reading and a writing with everything in between, and a new reading when the writing is refused. A member that waits
     is woken by every write of the record, and looks.

   What is left out
     Mailboxes, results, deadlines (a member that runs past its deadline is one that is killed), the `.failed` file, the
     search for deadlocks. That a send raises once the session is over is how a send is written here, and shows
     nothing: the tests of sessions do. That the opener, or the worker's parent, sees a killed worker is one step here. A
     member that finds the opener killed when it is about to join records that in one step. */

#ifndef MEMBERS
#define MEMBERS 3         /* member 0 is the opener */
#endif
#ifndef CRASHES
#define CRASHES 2
#endif

#define OPENER 0
#define NOBODY MEMBERS

mtype = { outside, joining, inside, failing, closing, aborted, left, killed };      /* where a member is */
mtype = { read, stale, join, send, fail, close, leave, crash, watch, watch_stale, blame };              /* the steps */
mtype = { yes, refused };                                                              /* and their outcomes */

/* The record. */
byte version, admitted;
byte failed_by = NOBODY;  /* the member whose failure stands */
bool ended;               /* its opener closed it */
#define OVER (failed_by != NOBODY || ended)
#define END ((failed_by != NOBODY) + 2 * ended)

typedef Member {
    mtype is = outside;
    bool has_read;        /* in the middle of a change of the record, */
    byte version;         /* which it read in this version */
    byte aborts           /* not in the room: how often it was told of the failure */
};
Member member[MEMBERS];
byte crashes;
byte first = NOBODY;      /* not in the room: the first failure that was recorded */
#ifdef TRACE
byte steps, lives;
#endif

/* Scratch of one step; never part of a state. */
hidden byte was_end, happened, i;
hidden mtype was;

#define PROMISE(name, holds) assert(holds)

inline every_promise() {
    PROMISE(9_the_first_failure_stands, failed_by == first);
    PROMISE(9_each_member_is_told_once, member[0].aborts <= 1 && member[MEMBERS - 1].aborts <= 1)
}

inline begin(m) { was = member[m].is; was_end = END }

/* The end of each step: every promise holds, and it is told: by which member, where that was and is, how the session's
   end was and is, and then what is in the record. */
inline done(step, m, outcome) {
    every_promise();
    printf("%e %d %e | %e>%e %d>%d | %d %d %d\n", step, m, outcome, was, member[m].is, was_end, END, admitted, failed_by, ended)
#ifdef TRACE
    ; steps++
#endif
}

inline read_record(m) { member[m].has_read = true; member[m].version = version }
inline unread(m) { member[m].has_read = false; member[m].version = 0 }

/* Any change of the record begins with a reading. */
inline reading(m, to) {
    begin(m);
    member[m].is = to;
    read_record(m);
    done(read, m, yes)
}

#define FRESH(m) (member[m].has_read && member[m].version == version)
#define STALE(m) (member[m].has_read && member[m].version != version)
#define UNSEEN   (member[OPENER].is == killed && !OVER)     /* that the opener is gone */

inline record_failure(who) {
    if
    :: !OVER ->
        version++;
        PROMISE(9_the_first_failure_stands, failed_by == NOBODY && first == NOBODY);
        failed_by = who;
        first = who;
        happened = true
    :: else -> happened = false
    fi
}

proctype M(byte m) {
end: do
    /* A writing that finds another version is refused; then the record is read again. */
    :: d_step { STALE(m) -> begin(m); unread(m); done(stale, m, refused) }
    :: d_step { (member[m].is == joining || member[m].is == failing || member[m].is == closing) && !member[m].has_read ->
                reading(m, member[m].is) }

    /* Joining: its cell is written, then it is admitted, unless the session is over. */
    :: d_step { member[m].is == outside && !UNSEEN -> reading(m, joining) }
    :: d_step { member[m].is == outside && UNSEEN ->
                begin(m); record_failure(OPENER); member[m].is = left; done(join, m, refused) }
    :: d_step { member[m].is == joining && FRESH(m) ->
                begin(m);
                if
                :: OVER -> member[m].is = left; done(join, m, refused)
                :: else ->
                    PROMISE(9_nobody_joins_what_is_over, !OVER);
                    version++; admitted++; member[m].is = inside; done(join, m, yes)
                fi;
                unread(m) }

    /* Inside it sends and waits. Both look at the record first; a wait ends when it is over. */
    :: d_step { member[m].is == inside && !OVER -> begin(m); done(send, m, yes) }
    :: d_step { member[m].is == inside && OVER ->
                begin(m); member[m].is = aborted; member[m].aborts++; done(send, m, refused) }

    /* It raises, or it comes to its end; the opener's end is the session's. */
    :: d_step { member[m].is == inside -> reading(m, failing) }
    :: d_step { member[m].is == inside && m != OPENER -> begin(m); member[m].is = left; done(leave, m, yes) }
    :: d_step { member[m].is == inside && m == OPENER -> reading(m, closing) }
    :: d_step { member[m].is == failing && FRESH(m) ->
                begin(m); record_failure(m); unread(m); member[m].is = aborted; member[m].aborts++;
                if :: happened -> done(fail, m, yes) :: else -> done(fail, m, refused) fi }
    :: d_step { member[m].is == closing && FRESH(m) ->
                begin(m); version++; ended = true; member[m].is = left; unread(m); done(close, m, yes) }

    /* It is killed, at any moment. */
    :: d_step { crashes < CRASHES && (member[m].is == inside || member[m].is == failing || member[m].is == closing) ->
                begin(m); crashes++; member[m].is = killed; unread(m); done(crash, m, yes) }
    od
}

/* A member that was killed is blamed by a living one: a worker by the opener, the opener by anybody. */
#define LIVES(m) (member[m].is == inside || member[m].is == failing)
#define SOMEBODY_LIVES (LIVES(0) || LIVES(1) || LIVES(MEMBERS - 1))

typedef Look { bool has_read; byte version };
Look seen[MEMBERS];

proctype Watch(byte m) {
end: do
    :: d_step { member[m].is == killed && SOMEBODY_LIVES && !OVER && !seen[m].has_read ->
                begin(m); seen[m].has_read = true; seen[m].version = version; done(watch, m, yes) }
    :: d_step { seen[m].has_read && seen[m].version != version ->
                begin(m); seen[m].has_read = false; seen[m].version = 0; done(watch_stale, m, refused) }
    :: d_step { seen[m].has_read && seen[m].version == version ->
                begin(m); record_failure(m); seen[m].has_read = false; seen[m].version = 0;
                if :: happened -> done(blame, m, yes) :: else -> done(blame, m, refused) fi }
    od
}

#ifdef TRACE
/* For traces alone: after so many steps, or when nobody can do anything any more, the next session is opened. */
active proctype Scribe() {
end: do
    :: d_step {
        lives = 0;
        for (i : 0 .. MEMBERS - 1) {
            if
            :: member[i].is == aborted || member[i].is == left || (member[i].is == killed && !seen[i].has_read)
            :: else -> lives++
            fi
        };
        if
        :: steps >= TRACE || lives == 0 ->
            printf("end\n");
            for (i : 0 .. MEMBERS - 1) {
                member[i].is = outside; unread(i); member[i].aborts = 0; seen[i].has_read = false; seen[i].version = 0
            };
            member[OPENER].is = inside;
            version = 0; admitted = 1; failed_by = NOBODY; ended = false; crashes = 0; first = NOBODY; steps = 0
        :: else
        fi }
    od
}
#endif

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

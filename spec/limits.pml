/* Limits on taking and pauses, as every store keeps them (src/postroom/stores/contract.py, stores/gates.py).

   What is modelled
     Messages in one channel, of which so many at most are claimed at once, of which so many at most are claimed in each
     tick, and which can be paused. What runs is what is claimed: nothing is counted beside the claims, so a crash leaks
     nothing. Limits change at any moment. Every step is one call of the contract, and as there it happens whole.

   What is left out
     All that message.pml and order.pml have and that does not touch limits. Limits by sender and by order key: each is
     this limit for a part of the channel. A limit that is set below what runs: it ends nothing, and promises nothing before
     enough has ended. Mailboxes that are full. A death is seen at once.

   Time and tickets are counted as in message.pml. */

#ifndef RECEIVERS
#define RECEIVERS 2       /* processes that compete for the messages */
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef CRASHES
#define CRASHES 1         /* receivers that are killed, in all */
#endif
#ifndef CHANGES
#define CHANGES 2         /* changes of the limits, in all */
#endif

#define LEASE 2           /* ticks that a claim or an extension holds */
#define MANY 9            /* no limit */

#define NOBODY RECEIVERS        /* no receiver */
#define GONE (RECEIVERS + 1)    /* a receiver that was killed */
#define NONE MESSAGES           /* no message */

mtype = { unsent, ready, claimed, acked, dead };                                                 /* states */
mtype = { no, old, now };                                                                        /* tickets */
mtype = { send, claim, settle, settle_and_claim, extend, limit, sweep, tick, crash };            /* the steps */
mtype = { plain, retry,                                           /* what is sent, and what else is said in settling */
          one, two, any, slow, quick, pause, resume };            /* how the limits change */
mtype = { yes, nothing };          /* and their outcomes: it was done; nothing was given, and nothing has changed */

typedef Message {
    mtype state = unsent;      /* as it is written down; SEEN(m) is what a look shows */
    byte deliveries;
    byte left;                 /* until the lease ends */
    byte owner = NOBODY;       /* the receiver that claimed it */
    byte sure = NOBODY;        /* not in the store: the receiver that may rely on having it, */
    byte sure_left             /* and for how long, by its own clock */
};
Message message[MESSAGES];

typedef Tickets { mtype on[MESSAGES] = no };
Tickets ticket[RECEIVERS];     /* the last ticket of each receiver for each message */

byte most = MANY;              /* so many may be claimed at once */
bit rated;                     /* whether one may be claimed in each tick, and no more */
bit paused;
bit used;                      /* the bucket: whether the claim of this tick was used up */

byte sent, crashes, changes;   /* how many so far */
byte taken;                    /* not in the store: claims in this tick that the rate counts */
#ifdef TRACE
byte steps, ended;
#endif

/* What the clock did counts, though nobody has written it down yet: states.judge. */
#define SPENT(m) (message[m].deliveries >= 2)
#define OVER(m)  (message[m].state == claimed && (message[m].left == 0 || message[m].owner == GONE))
#define SEEN(m)  (OVER(m) -> (SPENT(m) -> dead : ready) : message[m].state)
#define FINISHED(s) (s == acked || s == dead)

/* The fence. The end of a lease takes nothing from its holder; only the next claim does. */
#define COUNTS(r, m) (ticket[r].on[m] == now && (message[m].state == claimed || message[m].state == ready))
#define HAS_HAD(r, m) (ticket[r].on[m] != no)

/* Scratch of one step; never part of a state. */
hidden byte i, j, got, running, sure;
hidden mtype outcome, seen, was[MESSAGES], looked[MESSAGES];

/* ---- The promises (docs/guarantees.md) ---- */

#define PROMISE(name, holds) assert(holds)

inline every_promise() {
    sure = 0;
    for (i : 0 .. MESSAGES - 1) {
        PROMISE(1_a_send_that_returned_is_kept, (i < sent) == (message[i].state != unsent));
        PROMISE(4_one_live_owner, message[i].sure == NOBODY || (COUNTS(message[i].sure, i) && SEEN(i) == claimed));
        if :: message[i].sure != NOBODY -> sure++ :: else fi
    };
    PROMISE(limits_are_never_exceeded, sure <= most);
    PROMISE(rates_are_never_exceeded, taken <= 1)
}

/* ---- Parts of the steps ---- */

inline begin() {
    got = NONE;
    outcome = nothing;
    for (i : 0 .. MESSAGES - 1) { was[i] = message[i].state; looked[i] = SEEN(i) }
}

#ifdef TRACE
inline count_ended() {
    ended = 0;
    for (i : 0 .. MESSAGES - 1) { if :: FINISHED(message[i].state) -> ended++ :: else fi }
}
#endif

/* The end of each step, told as message.pml does. */
inline done(step, how, r, m) {
    every_promise();
    printf("%e %e %d %d %e %d", step, how, r, m, outcome, got);
    for (i : 0 .. MESSAGES - 1) {
        printf(" | %e>%e %e>%e %e %d", looked[i], SEEN(i), was[i], message[i].state, no, message[i].deliveries)
    };
    printf("\n")
#ifdef TRACE
    ; steps++; count_ended()
#endif
}

/* Every ticket that was given so far is an old one now. */
inline new_token(m) {
    for (i : 0 .. RECEIVERS - 1) {
        if :: ticket[i].on[m] == now -> ticket[i].on[m] = old :: else fi
    }
}

inline become(m, target) {
    message[m].state = target;
    message[m].left = 0;
    message[m].owner = NOBODY;
    message[m].sure = NOBODY;
    message[m].sure_left = 0;
    if :: FINISHED(target) -> new_token(m) :: else fi
}

inline write_down() {
    for (j : 0 .. MESSAGES - 1) {
        seen = SEEN(j);
        if :: seen != message[j].state -> become(j, seen) :: else fi
    }
}

inline hold(r, m) {
    message[m].state = claimed;
    message[m].left = LEASE;
    message[m].owner = r;
    message[m].sure = r;
    message[m].sure_left = LEASE
}

/* How many run: derived from the claims, each time. */
inline count_running() {
    running = 0;
    for (i : 0 .. MESSAGES - 1) { if :: message[i].state == claimed -> running++ :: else fi }
}

/* The first message that is ready, where the limits let one pass. */
inline take_first(r) {
    write_down();
    count_running();
    got = 0;
    do :: got < MESSAGES && message[got].state != ready -> got++ :: else -> break od;
    if
    :: got < MESSAGES && !paused && running < most && !(rated && used) ->
        new_token(got);
        ticket[r].on[got] = now;
        message[got].deliveries++;
        hold(r, got);
        if :: rated -> used = 1; taken++ :: else fi;
        PROMISE(a_pause_gives_nothing, !paused)
    :: else ->
        running = 0;
        for (i : 0 .. MESSAGES - 1) {
            if :: message[i].state == claimed && message[i].owner != GONE && message[i].left > 0 -> running++ :: else fi
        };
        PROMISE(5_a_kill_leaks_nothing, got == NONE || paused || running >= most || (rated && taken > 0));
        got = NONE
    fi
}

/* ---- What a receiver can do ---- */

inline claiming(r) {
    begin();
    take_first(r);
    if :: got != NONE -> outcome = yes :: else fi;
    done(claim, no, r, NONE)
}

inline settling(r, m, how, step) {
    begin();
    if
    :: COUNTS(r, m) ->
        outcome = yes;
        PROMISE(4_one_live_owner, message[m].sure == NOBODY || message[m].sure == r);
        if
        :: how == retry && SPENT(m) -> become(m, dead)
        :: how == retry && !SPENT(m) -> new_token(m); become(m, ready)
        :: how == acked -> become(m, acked)
        fi
    :: else
    fi;
    if :: step == settle_and_claim -> take_first(r) :: else fi;
    done(step, how, r, m)
}

/* A late holder may have its message again, while no limit is in the way: a rate has counted it, and a pause does not end
   what runs. */
inline extending(r, m) {
    begin();
    if :: most != MANY -> write_down() :: else fi;
    count_running();
    if
    :: COUNTS(r, m) && (message[m].state == claimed || running < most) -> outcome = yes; hold(r, m)
    :: else
    fi;
    done(extend, no, r, m)
}

/* The process is killed; another takes its place, and knows nothing. */
inline crashing(r) {
    begin();
    outcome = yes;
    crashes++;
    for (i : 0 .. MESSAGES - 1) {
        ticket[r].on[i] = no;
        if :: message[i].owner == r -> message[i].owner = GONE :: else fi;
        if :: message[i].sure == r -> message[i].sure = NOBODY; message[i].sure_left = 0 :: else fi
    };
    done(crash, no, r, NONE)
}

proctype Receiver(byte r) {
end: do
    :: d_step { claiming(r) }
    :: d_step { crashes < CRASHES -> crashing(r) }
    od
}

/* What a receiver says about one message, also when its ticket is an old one. */
proctype Holder(byte r; byte m) {
end: do
    :: d_step { HAS_HAD(r, m) -> settling(r, m, acked, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, acked, settle_and_claim) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, retry, settle) }
    :: d_step { HAS_HAD(r, m) -> extending(r, m) }
    od
}

/* ---- What others can do ---- */

inline sending(m) {
    begin();
    sent++;
    message[m].state = ready;
    outcome = yes;
    done(send, plain, NOBODY, m)
}

proctype Sender() {
    byte m;
end: do
    :: d_step { sent < MESSAGES -> m = sent; sending(m); m = 0 }
    od
}

inline limiting(how) {
    begin();
    outcome = yes;
    changes++;
    if
    :: how == one -> most = 1
    :: how == two -> most = 2
    :: how == any -> most = MANY
    :: how == slow -> rated = 1; taken = 0
    :: how == quick -> rated = 0; used = 0; taken = 0
    :: how == pause -> paused = 1
    :: how == resume -> paused = 0
    fi;
    done(limit, how, NOBODY, NONE)
}

#define CLAIMED(m) (m < MESSAGES && message[m % MESSAGES].state == claimed)
#define RUNNING (CLAIMED(0) + CLAIMED(1) + CLAIMED(2) + CLAIMED(3))
#define MAY_CHANGE (changes < CHANGES)

proctype Keeper() {
end: do
    :: d_step { MAY_CHANGE && most != 1 && RUNNING <= 1 -> limiting(one) }
    :: d_step { MAY_CHANGE && most != 2 && RUNNING <= 2 -> limiting(two) }
    :: d_step { MAY_CHANGE && most != MANY -> limiting(any) }
    :: d_step { MAY_CHANGE && !rated -> limiting(slow) }
    :: d_step { MAY_CHANGE && rated && !used -> limiting(quick) }
    :: d_step { MAY_CHANGE && !paused -> limiting(pause) }
    :: d_step { MAY_CHANGE && paused -> limiting(resume) }
    od
}

/* ---- Time, and what keeps the store small ---- */

inline ticking() {
    begin();
    outcome = yes;
    used = 0;
    taken = 0;
    for (i : 0 .. MESSAGES - 1) {
        if :: message[i].left > 0 -> message[i].left-- :: else fi;
        if :: message[i].sure_left > 0 -> message[i].sure_left-- :: else fi;
        if :: message[i].sure_left == 0 -> message[i].sure = NOBODY :: else fi
    };
    done(tick, no, NOBODY, NONE)
}

inline sweeping() {
    begin();
    outcome = yes;
    write_down();
    done(sweep, no, NOBODY, NONE)
}

#ifndef TRACE
#define CLOCKS 1
#else
#define CLOCKS 2               /* chance would let little time pass among so many processes */
#endif

active [CLOCKS] proctype Time() {
end: do
    :: d_step { sent > 0 -> ticking() }
    :: d_step { sent > 0 -> sweeping() }
    od
}

#ifdef TRACE
/* For traces alone: after so many steps, or when nothing can happen any more, the next room begins, as empty as the first. */
active proctype Scribe() {
end: do
    :: d_step { steps >= TRACE || ended == MESSAGES ->
        printf("end\n");
        ended = 0;
        for (j : 0 .. MESSAGES - 1) {
            become(j, unsent);
            message[j].deliveries = 0;
            for (i : 0 .. RECEIVERS - 1) { ticket[i].on[j] = no }
        };
        most = MANY; rated = 0; paused = 0; used = 0; taken = 0;
        sent = 0; crashes = 0; changes = 0; steps = 0 }
    od
}
#endif

init {
    byte n, k;
    atomic {
        for (n : 0 .. RECEIVERS - 1) {
            run Receiver(n);
            for (k : 0 .. MESSAGES - 1) { run Holder(n, k) }
        };
        run Sender();
        run Keeper();
        n = 0; k = 0
    }
}

/* A cell: a small named value that is changed by compare-and-set (Store.cell_read, Store.cell_write).

   What is modelled
     Writers that read a cell and later write what they made of it, and writers that write whatever is there. Between a
     reading and its writing anything may happen. Boards, sessions and reservations stand on this and on nothing else.

   What is left out
     Scans and hints; several cells, because no step touches two. */

#ifndef WRITERS
#define WRITERS 3
#endif
#ifndef WRITES
#define WRITES 5          /* writes and deletions that count, in all */
#endif

#define ANY 255           /* whatever version is there */
#define NOT_THERE 0       /* the version of a cell that is not there */

mtype = { look, create, change, overwrite, remove };         /* the steps */
mtype = { yes, refused };                                    /* and their outcomes */

byte version;             /* of the cell; 0: it is not there */
byte value;               /* a counter, so that a lost addition is seen */
byte given;               /* the last version that was given out: they only grow */

typedef Writer {
    bool has_read;
    byte version;         /* as it was read */
    byte value;
    byte writes           /* not in the store: the number of writes there had been */
};
Writer writer[WRITERS];

byte writes;              /* not in the store: writes so far, */
byte sum;                 /* and what the counter must be */

#ifdef TRACE
byte steps;
#endif

/* Scratch of one step; never part of a state. */
hidden byte counted, was_version, was_stale, i;

#define PROMISE(name, holds) assert(holds)

/* The end of each step, told with: whether the cell was there, and is; whether what the writer had read was out of date;
   and after that what a reading gives. */
inline done(w, step, outcome) {
    printf("%e %d %e | %d>%d %d | %d\n", step, w, outcome, was_version != NOT_THERE, version != NOT_THERE, was_stale, value)
#ifdef TRACE
    ; steps++
#endif
}

inline begin(w) { was_version = version; was_stale = writer[w].has_read && writer[w].version != version }

inline forget(w) { writer[w].has_read = false; writer[w].version = 0; writer[w].value = 0; writer[w].writes = 0 }

inline read(w) {
    begin(w);
    writer[w].has_read = true;
    writer[w].version = version;
    writer[w].value = value;
    writer[w].writes = writes;
    done(w, look, yes)
}

/* The one step that changes a cell. It is refused when the version is another than was expected. */
inline write(w, how, expect, new_value) {
    begin(w);
    counted = (expect == ANY || expect == version);
    if
    :: counted ->
        PROMISE(no_write_is_overwritten_unseen, expect == ANY || expect == NOT_THERE || writer[w].writes == writes);
        PROMISE(only_one_creates_it, expect != NOT_THERE || version == NOT_THERE);
        writes++;
        if
        :: how == remove -> version = NOT_THERE; value = 0; sum = 0
        :: else ->
            sum = (how == overwrite -> new_value : sum + 1);
            value = new_value;
            given++;
            version = given
        fi;
        PROMISE(no_addition_is_lost, value == sum)
    :: else
    fi;
    PROMISE(a_version_never_comes_back, version <= given && (version == NOT_THERE || !counted || version == given));
    if :: counted -> done(w, how, yes) :: else -> done(w, how, refused) fi;
    forget(w)
}

#define MAY_WRITE(w) (writes < WRITES && writer[w].has_read)

active [WRITERS] proctype W() {
end: do
    :: d_step { writes < WRITES -> read(_pid) }
    :: d_step { MAY_WRITE(_pid) && writer[_pid].version != NOT_THERE ->
                write(_pid, change, writer[_pid].version, writer[_pid].value + 1) }
    :: d_step { MAY_WRITE(_pid) && writer[_pid].version != NOT_THERE -> write(_pid, remove, writer[_pid].version, 0) }
    :: d_step { MAY_WRITE(_pid) && writer[_pid].version == NOT_THERE -> write(_pid, create, NOT_THERE, 1) }
    :: d_step { MAY_WRITE(_pid) -> write(_pid, overwrite, ANY, 1) }
    od
}

#ifdef TRACE
/* For traces alone: after so many steps, or when all writes are made, the next cell begins. */
active proctype Scribe() {
end: do
    :: d_step { steps >= TRACE || writes >= WRITES ->
        printf("end\n");
        for (i : 0 .. WRITERS - 1) { forget(i) };
        given = 0; version = given; value = 0; writes = 0; sum = 0; steps = 0 }
    od
}
#endif

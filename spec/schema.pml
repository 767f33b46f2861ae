/* The schema guard: what lands was written for columns that are in the table.
 *
 * Each start writes files for the schema that it finds; what earlier starts have written counts, in
 * files or as chunks that wait to be put into files. Others add a column, drop it, and add one of the
 * same name again: Iceberg gives that another id, and values under the old id are read as NULL.
 * Claims and the fence are modelled in commit.pml: here a start begins when the one before it has
 * ended, and one of the posts may land at any time.
 *
 * Each guard has a switch, NO_<NAME>. With a guard removed spin must find a violation.
 */

#ifndef STARTS
#define STARTS 3
#endif
#ifndef CHANGES
#define CHANGES 5       /* How often others change the schema. */
#endif
#define SETS 4          /* What is staged, by the start that made it: 1 and up. */
#define NOTHING 9

/* ---- The table. A schema is identified by the one column that comes and goes: its id, or 0 while
 * there is none. Equal schemas have one id (Iceberg looks for an equal one first), so this is also
 * the schema's id.
 */
byte column;
bool needed;            /* The column must be filled. */
byte columns;           /* How many there have been: an id is never reused. */

/* ---- What is staged: the column that files or a chunk are written for, 0 for a schema without it.
 * `made`, a ghost: the column that the values were computed for.
 */
byte written[SETS] = NOTHING;
byte made[SETS] = NOTHING;
bool waits[SETS];       /* A chunk, which a later start puts into files. */

/* ---- Posts under way, by start, and their schema. Each publishes all that was staged before. ---- */
bool sent[SETS];
byte sent_column[SETS];
bool landed;            /* At most one does: commit.pml. */
byte ended;             /* The last start that has ended. */

hidden byte i;

/* schemas.py schema_changes: a column is gone, or a new one must be filled. */
#define FITS(set, id, must) (written[set] == NOTHING || written[set] == id || \
                             written[set] == 0 && !must)

/* sink.check, with every schema that something is staged for (workbook.py schemas). */
inline check(upto) {
  d_step {
    fits = 1; i = 1;
    do
    :: i <= upto ->
       if
       :: !FITS(i, v_column, v_needed) -> fits = 0
       :: else
       fi;
#ifdef NO_SCHEMA_CHECK
       if
       :: written[i] != NOTHING -> break        /* Only the oldest. */
       :: else
       fi;
#endif
       i++
    :: else -> break
    od;
    i = 0
  }
}

proctype Start(byte me) {
  byte v_column;
  bool v_needed, fits;

  /* A look, and the check before any work. The start writes for the schema of this look. */
  atomic {
    ended == me - 1;
    v_column = column; v_needed = needed;
#ifdef NO_FIRST_CHECK
    fits = 1;
#else
    check(me - 1);
#endif
    if
    :: !fits || landed -> goto stop             /* TableChangedError. */
    :: fits && !landed
    fi
  };
  /* replay.py: what waits becomes files for that schema, column by column. */
  atomic {
    fits = 1;
    d_step {
    i = 1;
    do
    :: i < me ->
       if
       :: waits[i] ->
#ifdef NO_REPLAY_BY_ID
          if                                    /* By name: into the column of that name. */
          :: made[i] != 0 && v_column == 0 -> fits = 0
          :: else -> waits[i] = 0; written[i] = v_column
          fi
#else
          if
          :: made[i] != 0 && made[i] != v_column -> fits = 0
          :: else -> waits[i] = 0; written[i] = v_column
          fi
#endif
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
    };
    if
    :: !fits -> goto stop                       /* TableChangedError. */
    :: fits
    fi
  };
  /* Its own rows: none, files, or a chunk. After a chunk it is killed: a later start replays it. */
  atomic {
    if
    :: skip
    :: written[me] = v_column; made[me] = v_column
    :: written[me] = v_column; made[me] = v_column; waits[me] = 1; goto stop
    fi;
    printf("%d has staged for column %d\n", me, v_column)
  };
  if
  :: goto stop                                  /* Killed before the commit. */
  :: skip
  fi;
  /* commit.py: a look, the check, and the post. */
  atomic {
    v_column = column; v_needed = needed;
    check(me);
    if
    :: !fits || landed                          /* TableChangedError, or it has landed already. */
    :: fits && !landed ->
       printf("%d posts for schema %d\n", me, v_column);
       sent[me] = 1; sent_column[me] = v_column
    fi
  };
stop:
  atomic { ended = me; v_column = 0; v_needed = 0; fits = 0 }
}

/* ---- The catalog lets a post land at any time, if the schema is the one that the post names. ---- */
#ifdef NO_SCHEMA_ASSERT
#define CAN_LAND(start) sent[start]
#else
#define CAN_LAND(start) (sent[start] && sent_column[start] == column)
#endif
active proctype Catalog() {
  byte upto;

  atomic {
    if
    :: CAN_LAND(1) -> upto = 1
    :: CAN_LAND(2) -> upto = 2
    :: CAN_LAND(3) -> upto = 3
    fi;
    printf("the post of %d lands; the column is %d\n", upto, column);
    landed = 1;
    d_step {
    i = 1;
    do
    :: i <= upto ->
       /* Written for columns that are in the table; no required column is left empty. */
       assert(FITS(i, column, needed));
       /* Each value is in the column that it was computed for. */
       assert(written[i] == NOTHING || made[i] == 0 || made[i] == written[i]);
       i++
    :: else -> break
    od;
    i = 0
    }
  }
}

/* ---- Others change the schema. ---- */
active proctype Others() {
  byte changes;

  do
  :: atomic { changes < CHANGES && column == 0 ->
       changes++; columns++; column = columns;
       if
       :: needed = 1                            /* As a required one. */
       :: needed = 0
       fi;
       printf("others add the column as %d, needed %d\n", column, needed) }
  :: atomic { changes < CHANGES && column != 0 ->
       changes++; column = 0; needed = 0;
       printf("others drop the column\n") }
  :: atomic { changes < CHANGES && needed -> changes++; needed = 0 }
  :: changes == CHANGES -> break
  od
}

init {
  atomic {
    run Start(1);
    run Start(2);
    if
    :: STARTS > 2 -> run Start(3)
    :: else
    fi
  }
}

/* A look at all lanes: which streams have work under way. In the thread of watch.c, whose capture mode is relaxed.
 * Knows the driver, neither buckets nor time. Tests: tests/native/test_lane.c, tests/integration/test_native_share.py. */
#include "driver.h"
#include "lane_priv.h"

enum { FEW = 8 }; /* launches between two looks, each of which may be marked */

/* Whether a look may ask about the stream. While a stream that blocks is captured, that forbids the shared default stream
 * too, and the driver says so without harm. */
static int may_ask(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (real_cuda.cuStreamIsCapturing == NULL) return 1;
  return real_cuda.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* An error other than "not ready" is the program's to find: work that failed is not under way. While nobody may ask, the
 * lane stays one to look at: else what it was given in a capture would count as its queue for ever. */
static int ask_stream(struct lane *lane) {
  uint64_t launched = atomic_load(&lane->launched);
  if (!may_ask(lane->stream)) {
    if (launched > atomic_load(&lane->passed)) atomic_store(&lane->dirty, 1);
    return lane->mark_count != 0;
  }
  if (real_cuda.cuStreamQuery(lane->stream) == CUDA_ERROR_NOT_READY) return 1;
  lane_raise_passed(lane, launched);
  return 0;
}

static int ask_marks(struct lane *lane) {
  if (lane->mark_count == 0) lane_raise_passed(lane, atomic_load(&lane->launched));
  return lane->mark_count != 0;
}

/* The next launch sets a mark, and some after it where there are few. */
static void want_marks(struct lane *lane, uint64_t launched) {
  atomic_store(&lane->marks_due, launched - lane->seen <= FEW ? FEW : 1);
  atomic_store(&lane->next_mark, 0);
  lane->seen = launched;
}

/* Only the thread itself can ask about its default stream. Its marks tell; when it launched without one and then stopped
 * launching, the shared default stream waits for it and can be marked instead. */
static int ask_thread(struct lane *lane, int launches) {
  uint64_t launched = atomic_load(&lane->launched);
  if (launches) want_marks(lane, launched);
  if (lane->mark_count != 0) return 1;
  if (launched <= atomic_load(&lane->passed)) return 0;
  if (launches) return 1;
  if (may_ask(CU_STREAM_LEGACY)) {
    lock_take(&lane->lock);
    lane_mark_on(lane, CU_STREAM_LEGACY);
    lock_give(&lane->lock);
  }
  return ask_marks(lane);
}

static int ask(struct lane *lane, int launches) {
  switch (lane->kind) {
    case LANE_THREAD:
      return ask_thread(lane, launches);
    case LANE_ENDED:
      return ask_marks(lane);
    case LANE_CROWD:
      lane_raise_passed(lane, atomic_load(&lane->launched));
      return launches;
    default:
      return ask_stream(lane);
  }
}

static int ask_within(struct lane *lane, int launches) {
  CUcontext none;
  if (real_cuda.cuCtxPushCurrent_v2(lane->context) != CUDA_SUCCESS) {
    atomic_store(&lane->passed, atomic_load(&lane->launched));
    return 0;
  }
  lane_poll(lane);
  int busy = ask(lane, launches);
  real_cuda.cuCtxPopCurrent_v2(&none);
  return busy;
}

static int needs_look(const struct lane *lane) {
  return atomic_load_explicit(&lane->dirty, memory_order_relaxed) ||
         atomic_load_explicit(&lane->busy, memory_order_relaxed);
}

static void look(struct lane *lane, struct lane_view *view) {
  int launches = (int)atomic_exchange(&lane->dirty, 0);
  int busy = lane->kind == LANE_CROWD ? ask(lane, launches) : ask_within(lane, launches);
  atomic_store(&lane->busy, busy);
  if (busy) view->busy |= UINT32_C(1) << lane->column;
  view->any |= launches || busy;
  if (!busy && lane->kind == LANE_ENDED) lane_free(lane);
}

/* The lock is taken for each lane anew: who waits for it waits for a microsecond. */
struct lane_view lanes_look(void) {
  struct lane_view view = {0, 0};
  struct lane_cursor cursor = {0, 0};
  for (struct lane *lane; (lane = lane_table_next(&cursor)) != NULL;) {
    if (!needs_look(lane)) continue;
    lane_touch();
    if (lane_table_has(lane) && !atomic_load(&lanes_stopped)) look(lane, &view);
    lane_touch_end();
  }
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (needs_look(&lane_crowds[column])) look(&lane_crowds[column], &view);
  return view;
}

int lanes_are_dirty(void) {
  struct lane_cursor cursor = {0, 0};
  for (struct lane *lane; (lane = lane_table_next(&cursor)) != NULL;)
    if (atomic_load(&lane->dirty)) return 1;
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (atomic_load(&lane_crowds[column].dirty)) return 1;
  return 0;
}

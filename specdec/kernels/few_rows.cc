// y = x w for few rows of x (at most kMaxRows), float32: reads w once, at the memory's speed.
//
// Every sum is added up in an order that depends on the shape of w alone: neither the number of
// rows nor the number of threads changes a bit of a row's result. So a block of tokens rounds as
// the same tokens one by one, and greedy speculation ties with nothing.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kMaxRows = 16;
constexpr int kLanes = 16;
constexpr int kUnroll = 8;  // rows of w per pass over y: fewer loads and stores of y
// Below this a second thread wakes up too late to be of use.
constexpr int64_t kSerialBytes = 1 << 19;
constexpr int kMaxParts = 8;

// A machine without registers of 64 bytes gets several instructions from the compiler.
typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vector Load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void Store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

inline float Sum(Vector v) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  return v[0];
}

// A part of a product: rows or columns `from` to `to` of w.
struct Operands {
  const float* x;  // [T, K]
  const float* w;  // [K, N], or [N, K] if transposed
  float* y;        // [T, N]
  int64_t K, N;
};

// y[t, :] += sum_j x[t, k + j] w[k + j, :] over J rows of w.
template <int T, int J>
void AddRows(const Operands& o, int64_t k) {
  const float* x = o.x + k;
  const float* w = o.w + k * o.N;
  int64_t n = 0;
  for (; n + kLanes <= o.N; n += kLanes) {
    Vector rows[J];
    for (int j = 0; j < J; ++j) {
      rows[j] = Load(w + j * o.N + n);
      // The processor's own prefetching loses the thread among J streams.
      __builtin_prefetch(w + (j + J) * o.N + n);
    }
    for (int t = 0; t < T; ++t) {
      Vector sum = Load(o.y + t * o.N + n);
      for (int j = 0; j < J; ++j) sum += rows[j] * x[t * o.K + j];
      Store(o.y + t * o.N + n, sum);
    }
  }
  for (; n < o.N; ++n)
    for (int t = 0; t < T; ++t)
      for (int j = 0; j < J; ++j) o.y[t * o.N + n] += w[j * o.N + n] * x[t * o.K + j];
}

// y = x[:, from:to] w[from:to, :].
template <int T>
void Plain(const Operands& o, int64_t from, int64_t to) {
  std::memset(o.y, 0, sizeof(float) * T * o.N);
  int64_t k = from;
  for (; k + kUnroll <= to; k += kUnroll) AddRows<T, kUnroll>(o, k);
  for (; k < to; ++k) AddRows<T, 1>(o, k);
}

// y[:, from:to] = x w[from:to, :]^T.
template <int T>
void Transposed(const Operands& o, int64_t from, int64_t to) {
  for (int64_t n = from; n < to; ++n) {
    const float* row = o.w + n * o.K;
    Vector sums[T] = {};
    int64_t k = 0;
    for (; k + kLanes <= o.K; k += kLanes) {
      const Vector weights = Load(row + k);
      for (int t = 0; t < T; ++t) sums[t] += weights * Load(o.x + t * o.K + k);
    }
    for (int t = 0; t < T; ++t) {
      float sum = Sum(sums[t]);
      for (int64_t i = k; i < o.K; ++i) sum += row[i] * o.x[t * o.K + i];
      o.y[t * o.N + n] = sum;
    }
  }
}

using PartFn = void (*)(const Operands&, int64_t, int64_t);

template <int... T>
PartFn Choose(int64_t num_rows, bool transposed, std::integer_sequence<int, T...>) {
  static constexpr PartFn kPlain[] = {Plain<T + 1>...};
  static constexpr PartFn kTransposed[] = {Transposed<T + 1>...};
  return (transposed ? kTransposed : kPlain)[num_rows - 1];
}

// A product cut into parts, which threads take one by one. Owned by all who may still look at it: a
// thread that wakes up late finds no part left.
struct Job {
  PartFn part_fn;
  Operands operands;
  int64_t num_rows, length, step;  // length: of what is cut, K or (transposed) N
  int num_parts;
  std::unique_ptr<float[]> partial;  // [num_parts, T, N], where parts add up to y
  std::atomic<int> num_taken{0}, num_done{0};

  void TakeParts() {
    for (int part; (part = num_taken.fetch_add(1)) < num_parts;) {
      Operands mine = operands;
      if (partial) mine.y = partial.get() + part * num_rows * operands.N;
      part_fn(mine, part * step, std::min(length, (part + 1) * step));
      num_done.fetch_add(1, std::memory_order_release);
    }
  }

  void AwaitAll() {
    while (num_done.load(std::memory_order_acquire) < num_parts) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

  void AddUp() {
    const int64_t size = num_rows * operands.N;
    std::memcpy(operands.y, partial.get(), sizeof(float) * size);
    for (int part = 1; part < num_parts; ++part)
      for (int64_t i = 0; i < size; ++i) operands.y[i] += partial[part * size + i];
  }
};

using Matrix = ffi::Buffer<ffi::F32, 2>;

ffi::Error FewRows(ffi::ThreadPool pool, Matrix x, Matrix w, ffi::Result<Matrix> y,
                   bool transposed) {
  const int64_t num_rows = x.dimensions()[0], K = x.dimensions()[1];
  const int64_t N = w.dimensions()[transposed ? 0 : 1];
  if (num_rows < 1 || num_rows > kMaxRows)
    return ffi::Error::InvalidArgument("few_rows: 1 to 16 rows");
  auto job = std::make_shared<Job>();
  job->part_fn = Choose(num_rows, transposed, std::make_integer_sequence<int, kMaxRows>());
  job->operands = {x.typed_data(), w.typed_data(), y->typed_data(), K, N};
  job->num_rows = num_rows;
  job->length = transposed ? N : K;
  const int64_t bytes = sizeof(float) * K * N;
  const int64_t parts = std::clamp<int64_t>(bytes / kSerialBytes, 1, kMaxParts);
  job->step = (job->length + parts - 1) / parts;
  job->step = (job->step + kUnroll - 1) / kUnroll * kUnroll;
  job->num_parts = (job->length + job->step - 1) / job->step;
  if (!transposed && job->num_parts > 1)
    job->partial.reset(new float[job->num_parts * num_rows * N]);
  const int64_t num_helpers = std::min<int64_t>(job->num_parts, pool.num_threads()) - 1;
  for (int64_t i = 0; i < num_helpers; ++i) pool.Schedule([job] { job->TakeParts(); });
  job->TakeParts();
  job->AwaitAll();
  if (job->partial) job->AddUp();
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(FewRowsProduct, FewRows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Matrix>()  // x
                                  .Arg<Matrix>()  // w
                                  .Ret<Matrix>()
                                  .Attr<bool>("transposed"));

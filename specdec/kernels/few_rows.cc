// y = x w for few rows of x (at most kMaxRows), float32: reads w once, at the memory's speed.
//
// Every sum is added up in an order that depends on the shape of w alone: neither the number of
// rows nor the number of threads changes a bit of a row's result. So a block of tokens rounds as
// the same tokens one by one, and greedy speculation ties with nothing.
#include <cstring>

#include "parts.h"

namespace ffi = xla::ffi;

namespace specdec {
namespace {

constexpr int kMaxRows = 16;
constexpr int64_t kTile = 512;  // columns at a time: their sums stay in the first-level cache
// Below this a second thread wakes up too late to be of use.
constexpr int64_t kSerialBytes = 1 << 19;
constexpr int64_t kMaxParts = 8;

struct Operands {
  const float* x;  // [T, K]
  const float* w;  // [K, N], or [N, K] if transposed
  float* y;        // [T, N]
  int64_t K, N;
};

// sums[i][t] += sum_j x[t, j] w[j, 16 i : 16 i + 16] over J rows of w and `width` columns.
template <int T, int J>
void AddRows(const Operands& o, const float* x, const float* w, int64_t width, Vector* sums) {
  // The rows that come after these, in the order in which memory holds them: the processor's own
  // prefetching loses the thread among J streams.
  const float* next = w + J * o.N;
  int64_t ahead = 0;
  for (int64_t n = 0; n < width; n += kLanes, sums += T) {
    Vector rows[J];
    for (int j = 0; j < J; ++j) {
      rows[j] = Load(w + j * o.N + n);
      __builtin_prefetch(next + ahead + j * kLanes, 0, 2);
    }
    ahead += J * kLanes;
    if (ahead >= width) ahead = 0, next += o.N;
    for (int t = 0; t < T; ++t) {
      Vector sum = sums[t];
      for (int j = 0; j < J; ++j) sum += rows[j] * x[t * o.K + j];
      sums[t] = sum;
    }
  }
}

// y = x[:, from:to] w[from:to, :].
template <int T>
void Plain(const Operands& o, int64_t from, int64_t to) {
  constexpr int J = T > 4 ? 8 : 4;  // rows of w per pass over the sums
  int64_t n = 0;
  for (int64_t width; (width = std::min(kTile, (o.N - n) / kLanes * kLanes)) > 0; n += width) {
    alignas(64) Vector sums[kTile / kLanes * T] = {};
    int64_t k = from;
    for (; k + J <= to; k += J) AddRows<T, J>(o, o.x + k, o.w + k * o.N + n, width, sums);
    for (; k < to; ++k) AddRows<T, 1>(o, o.x + k, o.w + k * o.N + n, width, sums);
    for (int64_t i = 0; i < width / kLanes; ++i)
      for (int t = 0; t < T; ++t) Store(o.y + t * o.N + n + i * kLanes, sums[i * T + t]);
  }
  for (; n < o.N; ++n) {
    for (int t = 0; t < T; ++t) {
      float sum = 0;
      for (int64_t k = from; k < to; ++k) sum += o.w[k * o.N + n] * o.x[t * o.K + k];
      o.y[t * o.N + n] = sum;
    }
  }
}

// y[:, n:n + R] = x w[n:n + R, :]^T.
template <int T, int R>
void DotRows(const Operands& o, int64_t n) {
  const float* w = o.w + n * o.K;
  Vector sums[T][R] = {};
  int64_t k = 0;
  for (; k + kLanes <= o.K; k += kLanes) {
    Vector rows[R];
    for (int r = 0; r < R; ++r) {
      rows[r] = Load(w + r * o.K + k);
      if (R > 1) __builtin_prefetch(w + R * o.K + k * R + r * kLanes, 0, 2);
    }
    for (int t = 0; t < T; ++t) {
      const Vector x = Load(o.x + t * o.K + k);
      for (int r = 0; r < R; ++r) sums[t][r] += rows[r] * x;
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) {
      float sum = Sum(sums[t][r]);
      for (int64_t i = k; i < o.K; ++i) sum += w[r * o.K + i] * o.x[t * o.K + i];
      o.y[t * o.N + n + r] = sum;
    }
  }
}

// y[:, from:to] = x w[from:to, :]^T.
template <int T>
void Transposed(const Operands& o, int64_t from, int64_t to) {
  constexpr int R = T > 4 ? 2 : 1;  // rows of w per pass over x; a single one streams best
  int64_t n = from;
  for (; n + R <= to; n += R) DotRows<T, R>(o, n);
  for (; n < to; ++n) DotRows<T, 1>(o, n);
}

using PartFn = void (*)(const Operands&, int64_t, int64_t);

template <int... T>
PartFn Choose(int64_t num_rows, bool transposed, std::integer_sequence<int, T...>) {
  static constexpr PartFn kPlain[] = {Plain<T + 1>...};
  static constexpr PartFn kTransposed[] = {Transposed<T + 1>...};
  return (transposed ? kTransposed : kPlain)[num_rows - 1];
}

using Matrix = ffi::Buffer<ffi::F32, 2>;

ffi::Error FewRows(ffi::ThreadPool pool, Matrix x, Matrix w, ffi::Result<Matrix> y,
                   bool transposed) {
  const int64_t T = x.dimensions()[0], K = x.dimensions()[1];
  const int64_t N = y->dimensions()[1];  // of w's rows, if transposed, perhaps only the first
  if (T < 1 || T > kMaxRows) return ffi::Error::InvalidArgument("few_rows: 1 to 16 rows");
  const Operands operands{x.typed_data(), w.typed_data(), y->typed_data(), K, N};
  const PartFn part_fn = Choose(T, transposed, std::make_integer_sequence<int, kMaxRows>());
  // Cut along N, each part writes columns of its own; along K, the parts add up to y.
  const int64_t length = transposed ? N : K;
  int64_t num_parts = std::clamp<int64_t>(sizeof(float) * K * N / kSerialBytes, 1, kMaxParts);
  int64_t step = (length + num_parts - 1) / num_parts;
  step = (step + 7) / 8 * 8;
  num_parts = (length + step - 1) / step;
  const bool adds_up = !transposed && num_parts > 1;
  std::unique_ptr<float[]> partial(adds_up ? new float[num_parts * T * N] : nullptr);
  RunParts(pool, num_parts, [=, sums = partial.get()](int part) {
    Operands mine = operands;
    if (adds_up) mine.y = sums + part * T * N;
    part_fn(mine, part * step, std::min(length, (part + 1) * step));
  });
  if (adds_up) {
    float* out = operands.y;
    std::memcpy(out, partial.get(), sizeof(float) * T * N);
    for (int64_t part = 1; part < num_parts; ++part)
      for (int64_t i = 0; i < T * N; ++i) out[i] += partial[part * T * N + i];
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specdec

XLA_FFI_DEFINE_HANDLER_SYMBOL(SpecdecFewRows, specdec::FewRows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<specdec::Matrix>()  // x
                                  .Arg<specdec::Matrix>()  // w
                                  .Ret<specdec::Matrix>()
                                  .Attr<bool>("transposed"));

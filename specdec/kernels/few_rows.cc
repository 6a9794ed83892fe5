// y = x w for few rows of x in float32: reads w once, at the memory's speed. w is
// float32, or bfloat16 that is widened in registers: the same numbers from half the memory.
//
// Every sum is added up in an order that depends on the shape of w alone: neither the number of
// rows nor the number of threads changes a bit of a row's result. So a block of tokens rounds as
// the same tokens one by one, and greedy speculation ties with nothing.
#include <cmath>
#include <cstring>

#include "parts.h"

namespace ffi = xla::ffi;

namespace specdec {
namespace {

constexpr int kChunk = 8;  // rows of x at once; more of them take several turns at a part of w
constexpr int64_t kTile = 512;  // columns at a time: their sums stay in the first-level cache
// Below this a second thread comes too late to be of use.
constexpr int64_t kSerialNumbers = 1 << 15;
constexpr int64_t kMaxParts = 8;

struct Bfloat16 {
  uint16_t bits;
};

inline float Widen(float value) { return value; }
inline float Widen(Bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

using specdec::Load;

inline Vector Load(const Bfloat16* from) {
  typedef uint16_t Narrow __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
  typedef uint32_t Wide __attribute__((vector_size(4 * kLanes)));
  return (Vector)(__builtin_convertvector(*reinterpret_cast<const Narrow*>(from), Wide) << 16);
}

template <typename W>
struct Operands {
  const float* x;  // [T, K]
  const W* w;      // [K, N], or [N, K] if transposed
  float* y;        // [T, N]
  int64_t K, N;
};

// What one part of the work reads of w.
struct Block {
  int64_t k_from, k_to, n_from, n_to;
};

// sums[i][t] += sum_j x[t, j] w[j, 16 i : 16 i + 16] over J rows of w and `width` columns.
template <int T, int J, typename W>
void AddRows(const Operands<W>& o, const float* x, const W* w, int64_t width, Vector* sums) {
  // The rows that come after these, in the order in which memory holds them: the processor's own
  // prefetching loses the thread among J streams.
  const W* next = w + J * o.N;
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

// y = x w over a block.
template <int T, typename W>
void Plain(const Operands<W>& o, const Block& block) {
  constexpr int J = T > 4 ? 8 : 4;  // rows of w per pass over the sums
  int64_t n = block.n_from;
  for (int64_t width; (width = std::min(kTile, (block.n_to - n) / kLanes * kLanes)) > 0;
       n += width) {
    alignas(64) Vector sums[kTile / kLanes * T] = {};
    int64_t k = block.k_from;
    for (; k + J <= block.k_to; k += J)
      AddRows<T, J>(o, o.x + k, o.w + k * o.N + n, width, sums);
    for (; k < block.k_to; ++k) AddRows<T, 1>(o, o.x + k, o.w + k * o.N + n, width, sums);
    for (int64_t i = 0; i < width / kLanes; ++i)
      for (int t = 0; t < T; ++t) Store(o.y + t * o.N + n + i * kLanes, sums[i * T + t]);
  }
  for (; n < block.n_to; ++n) {
    for (int t = 0; t < T; ++t) {
      float sum = 0;
      for (int64_t k = block.k_from; k < block.k_to; ++k)
        sum = std::fma(Widen(o.w[k * o.N + n]), o.x[t * o.K + k], sum);
      o.y[t * o.N + n] = sum;
    }
  }
}

// y[:, n:n + R] = x w[n:n + R, :]^T.
template <int T, int R, typename W>
void DotRows(const Operands<W>& o, int64_t n) {
  const W* w = o.w + n * o.K;
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
      for (int64_t i = k; i < o.K; ++i)
        sum = std::fma(Widen(w[r * o.K + i]), o.x[t * o.K + i], sum);
      o.y[t * o.N + n + r] = sum;
    }
  }
}

// y = x w^T over a block, which has all K.
template <int T, typename W>
void Transposed(const Operands<W>& o, const Block& block) {
  constexpr int R = T > 4 ? 2 : 1;  // rows of w per pass over x; a single one streams best
  int64_t n = block.n_from;
  for (; n + R <= block.n_to; n += R) DotRows<T, R>(o, n);
  for (; n < block.n_to; ++n) DotRows<T, 1>(o, n);
}

template <typename W>
using PartFn = void (*)(const Operands<W>&, const Block&);

template <typename W, int... T>
PartFn<W> Choose(int64_t num_rows, bool transposed, std::integer_sequence<int, T...>) {
  static constexpr PartFn<W> kPlain[] = {Plain<T + 1, W>...};
  static constexpr PartFn<W> kTransposed[] = {Transposed<T + 1, W>...};
  return (transposed ? kTransposed : kPlain)[num_rows - 1];
}

// A block of y for all T rows of x, a few of them at a time, in turns of about the same size. After
// the first turn the block of w lies in the processor's cache.
template <typename W>
void AllRows(Operands<W> o, int64_t T, const Block& block, bool transposed) {
  for (int64_t turns = (T + kChunk - 1) / kChunk; turns; --turns) {
    const int64_t rows = T / turns;
    Choose<W>(rows, transposed, std::make_integer_sequence<int, kChunk>())(o, block);
    o.x += rows * o.K;
    o.y += rows * o.N;
    T -= rows;
  }
}

using Matrix = ffi::Buffer<ffi::F32, 2>;

template <typename W>
void Multiply(ffi::ThreadPool& pool, const Operands<W>& o, int64_t T, bool transposed) {
  // Cut along N, each part writes columns of its own; along K, the parts add up to y.
  const bool along_k = !transposed && o.N < 2 * kTile;
  const int64_t length = along_k ? o.K : o.N;
  const int64_t grain = transposed || along_k ? 8 : kTile;
  int64_t num_parts = std::clamp<int64_t>(o.K * o.N / kSerialNumbers, 1, kMaxParts);
  const int64_t step = (length + num_parts * grain - 1) / (num_parts * grain) * grain;
  num_parts = (length + step - 1) / step;
  const bool adds_up = along_k && num_parts > 1;
  std::unique_ptr<float[]> partial(adds_up ? new float[num_parts * T * o.N] : nullptr);
  RunParts(pool, num_parts, [=, sums = partial.get()](int part) {
    const int64_t from = part * step, to = std::min(length, from + step);
    Operands<W> mine = o;
    if (adds_up) mine.y = sums + part * T * o.N;
    AllRows(mine, T, along_k ? Block{from, to, 0, o.N} : Block{0, o.K, from, to}, transposed);
  });
  if (!adds_up) return;
  std::memcpy(o.y, partial.get(), sizeof(float) * T * o.N);
  for (int64_t part = 1; part < num_parts; ++part)
    for (int64_t i = 0; i < T * o.N; ++i) o.y[i] += partial[part * T * o.N + i];
}

ffi::Error FewRows(ffi::ThreadPool pool, Matrix x, ffi::AnyBuffer w, ffi::Result<Matrix> y,
                   bool transposed) {
  const int64_t T = x.dimensions()[0], K = x.dimensions()[1];
  const int64_t N = y->dimensions()[1];  // of w's rows, if transposed, perhaps only the first
  const auto multiply = [&](auto data) {
    using W = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    Multiply(pool, Operands<W>{x.typed_data(), data, y->typed_data(), K, N}, T, transposed);
  };
  if (w.element_type() == ffi::BF16)
    multiply(static_cast<const Bfloat16*>(w.untyped_data()));
  else
    multiply(w.typed_data<float>());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specdec

XLA_FFI_DEFINE_HANDLER_SYMBOL(SpecdecFewRows, specdec::FewRows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<specdec::Matrix>()  // x
                                  .Arg<ffi::AnyBuffer>()   // w
                                  .Ret<specdec::Matrix>()
                                  .Attr<bool>("transposed"));

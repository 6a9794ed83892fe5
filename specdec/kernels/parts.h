// Work cut into parts that the threads of XLA's pool take one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace specdec {

constexpr int kLanes = 16;
// A machine without registers of 64 bytes gets several instructions from the compiler.
typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vector Load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void Store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

// Halves added to halves, in registers; element by element the compiler would go through memory.
inline float Sum(Vector v) {
  typedef float Half __attribute__((vector_size(2 * kLanes), may_alias));
  typedef float Quarter __attribute__((vector_size(kLanes), may_alias));
  union { Vector whole; Half half[2]; } whole{v};
  union { Half whole; Quarter half[2]; } half{whole.half[0] + whole.half[1]};
  const Quarter sums = half.half[0] + half.half[1];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// Owned by all threads that may still look at it: one that wakes up late finds no part left.
template <typename Fn>
struct Job {
  Fn fn;
  int num_parts;
  std::atomic<int> num_taken{0}, num_done{0};

  Job(Fn fn, int num_parts) : fn(std::move(fn)), num_parts(num_parts) {}

  void TakeParts() {
    for (int part; (part = num_taken.fetch_add(1)) < num_parts;) {
      fn(part);
      num_done.fetch_add(1, std::memory_order_release);
    }
  }

  void AwaitAll() const {
    while (num_done.load(std::memory_order_acquire) < num_parts) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
};

// Runs fn(0) ... fn(num_parts - 1), the calling thread among those that do.
template <typename Fn>
void RunParts(xla::ffi::ThreadPool& pool, int num_parts, Fn fn) {
  if (num_parts == 1) return fn(0);
  auto job = std::make_shared<Job<Fn>>(std::move(fn), num_parts);
  const int64_t num_helpers = std::min<int64_t>(num_parts, pool.num_threads()) - 1;
  for (int64_t i = 0; i < num_helpers; ++i) pool.Schedule([job] { job->TakeParts(); });
  job->TakeParts();
  job->AwaitAll();
}

}  // namespace specdec

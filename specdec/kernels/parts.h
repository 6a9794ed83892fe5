// Work cut into parts that the threads of XLA's pool take one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
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

// Parts of a piece of work, taken one by one. Owned by all threads that may still look at it: one
// that comes late finds no part left.
class Job {
 public:
  explicit Job(int num_parts) : num_parts_(num_parts) {}
  virtual ~Job() = default;

  void TakeParts() {
    for (int part; (part = num_taken_.fetch_add(1)) < num_parts_;) {
      Run(part);
      num_done_.fetch_add(1, std::memory_order_release);
    }
  }

  void AwaitAll() const {
    while (num_done_.load(std::memory_order_acquire) < num_parts_) Pause();
  }

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

 private:
  virtual void Run(int part) = 0;

  int num_parts_;
  std::atomic<int> num_taken_{0}, num_done_{0};
};

template <typename Fn>
class JobOf final : public Job {
 public:
  JobOf(Fn fn, int num_parts) : Job(num_parts), fn_(std::move(fn)) {}

 private:
  void Run(int part) override { fn_(part); }

  Fn fn_;
};

// Where helping threads find the newest job. To wake one up takes as long as to multiply by a
// matrix of a megabyte, so each goes on looking for a while after its last part. None is ever
// waited for unless it has taken a part: who posts a job does what nobody else does.
class Board {
 public:
  static Board& Get() {
    static Board* board = new Board;  // never destroyed: a helper may outlive main
    return *board;
  }

  void Post(std::shared_ptr<Job> job, int num_helpers, xla::ffi::ThreadPool& pool) {
    std::atomic_store(&newest_, std::move(job));
    num_posted_.fetch_add(1, std::memory_order_release);
    for (int i = num_looking_.load(std::memory_order_relaxed); i < num_helpers; ++i)
      pool.Schedule([this] { Help(); });
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kPatience{50};

  void Help() {
    num_looking_.fetch_add(1, std::memory_order_relaxed);
    int64_t seen = -1;
    for (Clock::time_point last = Clock::now(); Clock::now() - last < kPatience;) {
      const int64_t posted = num_posted_.load(std::memory_order_acquire);
      if (posted == seen) {
        Job::Pause();
        continue;
      }
      seen = posted;
      std::atomic_load(&newest_)->TakeParts();
      last = Clock::now();
    }
    num_looking_.fetch_sub(1, std::memory_order_relaxed);
  }

  std::shared_ptr<Job> newest_;
  std::atomic<int64_t> num_posted_{0};
  std::atomic<int> num_looking_{0};
};

// Runs fn(0) ... fn(num_parts - 1), the calling thread among those that do.
template <typename Fn>
void RunParts(xla::ffi::ThreadPool& pool, int num_parts, Fn fn) {
  if (num_parts == 1) return fn(0);
  auto job = std::make_shared<JobOf<Fn>>(std::move(fn), num_parts);
  const int num_helpers = std::min<int64_t>(num_parts, pool.num_threads()) - 1;
  Board::Get().Post(job, num_helpers, pool);
  job->TakeParts();
  job->AwaitAll();
}

}  // namespace specdec

// Ranks as threads of one process, over one mapping: what ThreadSanitizer needs to see a race.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/communicator.h"
#include "programs.h"

namespace ranks {

using namespace hybridcomm;
using std::chrono::milliseconds;

// The communicators of all ranks of one group.
class Group {
 public:
  explicit Group(uint32_t world, milliseconds timeout = milliseconds(30'000),
                 const std::string& name = "test") {
    CommunicatorOptions options;
    options.group = name;
    options.shape = {world, 1, 2, 256};
    options.timeout = timeout;
    shm::Membership membership;
    membership.region = shm::Region::create_anonymous(options.shape);
    membership.processes.assign(world, Process::self());
    for (options.rank = 0; options.rank < world; ++options.rank) {
      communicators_.push_back(Communicator::attach(options, membership));
    }
  }
  uint32_t world() const { return static_cast<uint32_t>(communicators_.size()); }
  Communicator& operator[](uint32_t rank) const { return *communicators_[rank]; }

  // Runs body(rank) in a thread for each rank.
  void each(const std::function<void(uint32_t)>& body) const {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < world(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

// A call of `program` with `data` as input and output of every rank.
template <class T>
OperationArguments call(const std::string& name, std::shared_ptr<const Program> program,
                        DType dtype, std::vector<T>& data) {
  OperationArguments arguments;
  arguments.algorithm = name;
  arguments.dtype = dtype;
  arguments.program = std::move(program);
  if (arguments.program->collective() == Collective::kBarrier) return arguments;
  arguments.count = data.size();
  arguments.inputs = arguments.outputs = {{data.data(), data.size() * sizeof(T)}};
  return arguments;
}

inline OperationArguments all_reduce(uint32_t world, uint32_t rank, std::vector<float>& data) {
  return call("two_shot", programs::load("all_reduce.two_shot", world, rank), DType::kFloat32,
              data);
}

inline OperationArguments barrier(uint32_t world, uint32_t rank) {
  OperationArguments arguments;
  arguments.algorithm = "dissemination";
  arguments.program = programs::load("barrier.dissemination", world, rank);
  return arguments;
}

// The CommError that `body` throws.
inline std::optional<ErrorInfo> caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.info();
  }
  return std::nullopt;
}

inline bool has(const std::optional<ErrorInfo>& error, const std::string& text) {
  return error && error->message.find(text) != std::string::npos;
}

inline const char* text(const std::optional<ErrorInfo>& error) {
  return error ? error->message.c_str() : "no error";
}

// That a call ended with an error of this kind, for which, optionally, the condition holds.
#define CHECK_ERROR(error, what, ...)                                                  \
  CHECK((error) && (error)->kind == ErrorKind::what __VA_OPT__(&&(__VA_ARGS__)), "%s", \
        ranks::text(error))

template <class Body>
milliseconds time_of(Body&& body) {
  const auto before = Clock::now();
  body();
  return std::chrono::duration_cast<milliseconds>(Clock::now() - before);
}

}  // namespace ranks

// The list of groups, and leaving them.
#include "torch/exit.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <vector>

#include "base/atomic.h"
#include "base/wait.h"
#include "torch/callbacks.h"
#include "torch/interpreter.h"

namespace hybridcomm {
namespace {

// A callback that takes longer is left to its fate.
constexpr std::chrono::seconds kLastCallbacks{5};
constexpr std::chrono::microseconds kForAWhile{60'000'000};

struct Groups {
  std::mutex mutex;
  std::vector<std::weak_ptr<Service>> list;
  uint32_t leaver = 0;  // the thread that runs leave_groups()
};

// Never destroyed: threads may outlive static objects. The groups of a forked child are its
// parent's.
Groups* g_groups = nullptr;
Groups& groups() {
  static const bool made = [] {
    g_groups = new Groups;
    pthread_atfork(nullptr, nullptr, [] { g_groups = new Groups; });
    return true;
  }();
  static_cast<void>(made);
  return *g_groups;
}

uint32_t this_thread() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

}  // namespace

void leave_at_exit(const std::shared_ptr<Service>& service) {
  Groups& all = groups();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.list, [](const auto& group) { return group.expired(); });
  all.list.push_back(service);
}

void leave_groups() {
  const ReleaseGil released;
  Groups& all = groups();
  publish(all.leaver, this_thread());
  std::vector<std::weak_ptr<Service>> leaving;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    leaving.swap(all.list);
  }
  for (const std::weak_ptr<Service>& group : leaving) {
    if (const std::shared_ptr<Service> service = group.lock()) service->shutdown();
  }
  finish_callbacks(kLastCallbacks);
}

void stay_if_leaving() {
  const uint32_t leaver = observe(groups().leaver);
  // The leaver waits for callbacks.
  if (leaver == 0 || leaver == this_thread() || current_callback() != 0) return;
  WaitPolicy policy;
  policy.slice = kForAWhile;
  wait_until(
      policy, [] { return Attempt::kBlocked; }, [] { return std::span<Bell* const>(); },
      [] { return kForAWhile; });
}

}  // namespace hybridcomm

// The list of groups, and leaving them.
#include "torch/exit.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "torch/callbacks.h"
#include "torch/interpreter.h"

namespace hybridcomm {
namespace {

// A callback that takes longer is left to its fate.
constexpr std::chrono::seconds kLastCallbacks{5};

struct Groups {
  std::mutex mutex;
  std::vector<std::weak_ptr<Communicator>> list;
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

}  // namespace

void leave_at_exit(const std::shared_ptr<Communicator>& communicator) {
  Groups& all = groups();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.list, [](const auto& group) { return group.expired(); });
  all.list.push_back(communicator);
}

void leave_groups() {
  const ReleaseGil released;
  std::vector<std::weak_ptr<Communicator>> leaving;
  {
    Groups& all = groups();
    const std::lock_guard<std::mutex> lock(all.mutex);
    leaving.swap(all.list);
  }
  for (const std::weak_ptr<Communicator>& group : leaving) {
    if (const std::shared_ptr<Communicator> communicator = group.lock()) communicator->shutdown();
  }
  wait_for_callbacks(kLastCallbacks);
}

}  // namespace hybridcomm

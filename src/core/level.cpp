#include "core/level.h"

#include <atomic>

namespace tower {
namespace {

thread_local Level* current_top = nullptr;

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

const char* name(Kind kind) {
  switch (kind) {
    case Kind::vmap: return "vmap";
    case Kind::jvp: return "jvp";
    case Kind::vjp: return "vjp";
  }
  return "?";
}

uint64_t this_thread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

Level* top() { return current_top; }

bool is_visible(const Level* level) {
  const Level* l = current_top;
  while (l && l->depth() > level->depth()) l = l->below();
  return l == level;
}

Level::Level(Kind kind, const char* label) : kind_(kind), label_(label), id_(next_id()), thread_(this_thread()) {}

std::string Level::describe() const { return std::string(label_) + " (level " + std::to_string(depth_) + ")"; }

void DispatchGuard::see_every_operator(bool yes) { c10::impl::tls_set_dispatch_key_included(kKey, yes); }

void DispatchGuard::skip_libtorch_autograd() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ | c10::autograd_dispatch_keyset;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

void DispatchGuard::with_libtorch_autograd() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

Scope::Scope(c10::intrusive_ptr<Level> level) : level_(std::move(level)), previous_(current_top) {
  if (previous_) level_->below_ = c10::intrusive_ptr<Level>::reclaim_copy(previous_);
  level_->depth_ = previous_ ? previous_->depth() + 1 : 1;
  level_->ended_ = false;
  current_top = level_.get();
  keys_.see_every_operator(true);
}

Scope::~Scope() {
  level_->ended_ = true;
  current_top = previous_;
}

Below::Below(const Level& level) : previous_(current_top) {
  current_top = level.below();
  keys_.see_every_operator(false);
}

Below::~Below() { current_top = previous_; }

}  // namespace tower

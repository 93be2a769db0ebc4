#include "kernels/kernels.h"

#include "core/bytes.h"

namespace tower::compiler {
namespace {

// All that decides what a region's kernel is, bit by bit.
std::string bytes_of(const Region& region) {
  std::vector<Id> roots = region.outputs;
  for (const Region::OfRow& of_row : region.of_row)
    if (of_row.folded != kNone) roots.push_back(of_row.folded);
  ByteWriter out;
  region.graph.write(out, roots);
  out.number(region.single);
  out.list(region.inputs, [&](const Region::Input& input) {
    out.number(static_cast<int64_t>(input.type));
    out.number(input.repeated);
    out.number(input.at.has_value());
    if (!input.at) return;
    out.number(input.at->index);
    out.number(input.at->n);
    out.number(input.at->stride);
    out.number(input.at->from_the_end);
  });
  out.numbers(region.outputs);
  for (size_t k = 0; k < region.outputs.size(); ++k) {
    out.number(region.is_added(k));
    out.number(region.is_summed(k));
  }
  out.list(region.of_row, [&](const Region::OfRow& of_row) {
    out.number(of_row.how);
    out.number(plain(of_row.folded));
  });
  out.numbers(region.once);
  out.number(region.levels);
  out.number(region.walked);
  out.number(region.placed.has_value());
  if (region.placed) {
    out.number(region.placed->lanes);
    out.list(region.placed->places, [&](const Region::Place& place) {
      for (const int64_t number : {place.memory, place.offset, place.stride}) out.number(number);
    });
  }
  return out.take();
}

}  // namespace

std::shared_ptr<const Kernel> Kernels::find(const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(bytes);
  return found == known_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Kernels> Kernels::drafts_of(std::shared_ptr<Kernels> made) {
  auto drafts = std::make_shared<Kernels>();
  drafts->source_ = made->source_;
  drafts->made_ = std::move(made);
  return drafts;
}

std::shared_ptr<const Kernel> Kernels::get(const Region& region) {
  if (made_ && !region.can_be_placed()) return made_->get(region);
  const std::string bytes = bytes_of(region);
  if (auto kernel = find(bytes)) return kernel;
  return keep(bytes, made_ ? Kernel::drafted(region, *source_) : std::make_shared<const Kernel>(region, *source_));
}

std::shared_ptr<const Kernel> Kernels::product(Type type) {
  if (made_) return made_->product(type);
  const std::string bytes = "product " + std::to_string(size_of(type));
  if (auto kernel = find(bytes)) return kernel;
  return keep(bytes, Kernel::product(type, *source_));
}

std::shared_ptr<const Kernel> Kernels::elimination(Type type) {
  if (made_) return made_->elimination(type);
  const std::string bytes = "elimination " + std::to_string(size_of(type));
  if (auto kernel = find(bytes)) return kernel;
  return keep(bytes, Kernel::elimination(type, *source_));
}

std::shared_ptr<const Kernel> Kernels::keep(const std::string& bytes, std::shared_ptr<const Kernel> made) {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Kernel>& known = known_[bytes];
  if (auto first = known.lock()) return first;  // another thread was faster
  known = made;
  return made;
}

bool Kernels::knows(const Region& region) {
  if (made_) return made_->knows(region);
  return find(bytes_of(region)) || source_->knows([&] { return Kernel::key_of(region, *source_); });
}

std::vector<std::shared_ptr<const Kernel>> Kernels::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Kernel>> kernels;
  for (const auto& [bytes, known] : known_)
    if (auto kernel = known.lock()) kernels.push_back(std::move(kernel));
  return kernels;
}

}  // namespace tower::compiler

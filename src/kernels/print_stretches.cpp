// NOTE [Stretches of lanes]
// Where elements are read elsewhere, a lane asks where it is: which piece, if any, it reads (fuse/elsewhere.h). Between
// two bounds that are asked for, all lanes have the same answers. So each long stretch of lanes has a loop of its own,
// in which the answers are constants: its piece is read without a mask, and of other pieces nothing is left.
//
//   turn0:    which loop is the vector that begins at %b0 for?
//   loop0s0:  the vectors that are in the first stretch, one after the other
//   loop0:    one vector, which has a bound within it, or is in no long stretch
//   done0:    is there another vector?
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/printer.h"

namespace tower::compiler {
namespace {

constexpr int64_t kFewVectors = 8;       // are no long stretch
constexpr size_t kMostStretches = 4;     // the longest
constexpr size_t kMostOperations = 400;  // of all of them: each is the kernel once more

}  // namespace

// What a comparison of a lane's place with a constant holds from, or up to: the bound. None of other nodes.
std::optional<int64_t> Printer::bound(const Node& n) const {
  if (n.op != Op::lt && n.op != Op::le) return std::nullopt;
  const bool place_is_first = is_place(n.args[0]);
  if (!place_is_first && !is_place(n.args[1])) return std::nullopt;
  const auto value = graph_.value(n.args[place_is_first ? 1 : 0]);
  if (!value || std::abs(*value) > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<int64_t>(*value) + (place_is_first == (n.op == Op::le));
}

void Printer::plan_stretches() {
  if (inside_.size() > 1 || many_ || region_.walked > 0 || !region_.has_places()) return;
  std::set<int64_t> bounds;
  for (const Id id : inside_[0])
    if (const auto at = bound(graph_[id])) bounds.insert(*at);
  for (auto at = bounds.begin(); at != bounds.end(); ++at)
    if (const auto next = std::next(at); next != bounds.end() && *next - *at >= kFewVectors * lanes_)
      stretches_.push_back({*at, *next});
  if (stretches_.empty()) return;
  std::ranges::stable_sort(stretches_, std::greater<>(), [](const Stretch& s) { return s.end - s.begin; });
  stretches_.resize(std::min({stretches_.size(), kMostStretches, kMostOperations / inside_[0].size()}));
}

// What is known of booleans for all lanes of a stretch.
void Printer::know(const Stretch& stretch) {
  known_ = ById<Id, std::optional<bool>>(graph_.size());
  for (const Id id : inside_[0]) {
    const Node& n = graph_[id];
    if (const auto at = bound(n)) {
      known_[id] = is_place(n.args[0]) == (stretch.begin < *at);
    } else if (n.type == Type::b1 && (n.op == Op::mul || n.op == Op::add)) {
      // One decides if it is false of an and, true of an or; else both do.
      const auto a = known_[n.args[0]], b = known_[n.args[1]];
      const bool decides = n.op == Op::add;
      if (a == decides || b == decides) known_[id] = decides;
      else if (a && b) known_[id] = !decides;
    }
  }
}

void Printer::print_loops_of_stretches(const std::vector<size_t>& written) {
  const auto name = [](size_t s) { return "0s" + std::to_string(s); };
  const Holes step = {{"step", std::to_string(lanes_)}};
  std::string behind = "[ %next0, %loop0 ]";
  print(Type::b1, R"(
  br label %enter0
enter0:
  %last0 = sub i64 %end, {step}
  %some0 = icmp sle i64 %begin, %last0
  br i1 %some0, label %turn0, label %enter1
turn0:
  %b0 = phi i64 [ %begin, %enter0 ], [ %behind0, %done0 ]
  br label %ask0s0
)",
        step);
  for (size_t s = 0; s < stretches_.size(); ++s) {
    Holes holes = step;
    holes.emplace_back("s", name(s));
    holes.emplace_back("else", s + 1 < stretches_.size() ? "ask" + name(s + 1) : "loop0");
    holes.emplace_back("first", std::to_string(stretches_[s].begin));
    holes.emplace_back("last", std::to_string(stretches_[s].end - lanes_));
    print(Type::b1, R"(
ask{s}:
  %ends{s} = icmp slt i64 %last0, {last}
  %last{s} = select i1 %ends{s}, i64 %last0, i64 {last}
  %from{s} = icmp sge i64 %b0, {first}
  %to{s} = icmp sle i64 %b0, %last{s}
  %in{s} = and i1 %from{s}, %to{s}
  br i1 %in{s}, label %loop{s}, label %{else}
loop{s}:
  %b{s} = phi i64 [ %b0, %ask{s} ], [ %next{s}, %loop{s} ]
)",
          holes);
    loop_ = name(s);
    know(stretches_[s]);
    print_turn(inside_[0], written, "%b" + loop_, 1);
    print(Type::b1, R"(
  %next{s} = add i64 %b{s}, {step}
  %more{s} = icmp sle i64 %next{s}, %last{s}
  br i1 %more{s}, label %loop{s}, label %done0
)",
          holes);
    behind += ", [ %next" + loop_ + ", %loop" + loop_ + " ]";
  }
  known_ = {};
  loop_ = "0";
  body_ += "loop0:\n";
  print_turn(inside_[0], written, "%b0", 1);
  print(Type::b1, R"(
  %next0 = add i64 %b0, {step}
  br label %done0
done0:
  %behind0 = phi i64 {behind}
  %more0 = icmp sle i64 %behind0, %last0
  br i1 %more0, label %turn0, label %enter1
enter1:
  ret void
}
)",
        {{"step", std::to_string(lanes_)}, {"behind", behind}});
}

}  // namespace tower::compiler

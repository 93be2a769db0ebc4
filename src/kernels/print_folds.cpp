// NOTE [Rows in a kernel]
// Where what all lanes of a row add up to is needed in a lane again (the greatest element, say, before the sum of
// exponentials), the kernel makes several passes over the row, from its first lane on, whatever their number:
//
//   loopm0:     four vectors a turn, each with accumulators of its own
//   looprest0:  what is left, a vector a turn: its lanes beyond the row are neither read nor written
//   done0:      accumulators into one, and the lanes of that; then what is computed once for the row
//   loopm1: …
//
// A pass computes what it needs anew from memory, but for functions: their values are kept for the passes that follow.
//
// Sums of floats go through blocks: every 16 turns, accumulators are added to those of the next level, 16 of which go
// to the next, for as many levels as the row is long. So the error grows with the logarithm of the row's length, as it
// does in LibTorch's sums.
#include <algorithm>

#include "kernels/printer.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr int kBlock = 16;

std::string identity(Region::OfRow::How how, Type type) {
  const bool floating = is_float(type);
  const auto of = [&](const char* float_text, const char* i64, const char* i32, const char* b1) {
    return std::string(scalar(type)) + " " +
           (floating            ? float_text
            : type == Type::i64 ? i64
            : type == Type::i32 ? i32
                                : b1);
  };
  switch (how) {
    case Region::OfRow::sum:
      return of("0.0", "0", "0", "false");
    case Region::OfRow::product:
      return of("1.0", "1", "1", "true");
    case Region::OfRow::greatest:
      return of("0xFFF0000000000000", "-9223372036854775808", "-2147483648", "false");
    default:
      return of("0x7FF0000000000000", "9223372036854775807", "2147483647", "true");
  }
}

}  // namespace

// ---- what is computed when ----

void Printer::plan_rows() {
  ById<Id, size_t> stage(graph_.size(), 0);
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (!live_[id]) continue;
    const Region::OfRow* of_row = region_.of_row_at(n);
    if (of_row && of_row->folded != kNone) stage[id] = stage[of_row->folded] + 1;
    for (const Id a : n.args)
      if (a != kNone) stage[id] = std::max(stage[id], stage[a]);
  }
  const size_t last = *std::max_element(stage.begin(), stage.end());
  passes_.resize(last + 1);
  ById<Id, bool> computed(graph_.size());
  for (size_t s = 0; s <= last; ++s) {
    Pass& pass = passes_[s];
    ById<Id, bool> wanted(graph_.size());
    const auto want = [&](Id id) { wanted[id] = true; };
    for (const Id id : graph_.ids()) {
      const Region::OfRow* of_row = region_.of_row_at(graph_[id]);
      if (!live_[id]) continue;
      if (of_row && of_row->folded != kNone && stage[id] == s + 1) {
        pass.folds.push_back(id);
        want(of_row->folded);
      }
      if (once_[id] && stage[id] == s && graph_[id].op != Op::input && graph_[id].op != Op::constant)
        pass.of_row.push_back(id);
    }
    for (size_t k = 0; k < region_.outputs.size(); ++k) {
      if (region_.is_once(k) || stage[region_.outputs[k]] != s) continue;
      pass.outputs.push_back(k);
      want(region_.outputs[k]);
    }
    for (const Id id : graph_.ids_backwards()) {
      if (!wanted[id] || once_[id]) continue;
      pass.nodes.push_back(id);
      if (is_function(graph_[id].op) && computed[id]) {
        if (std::find(kept_.begin(), kept_.end(), id) == kept_.end()) kept_.push_back(id);
        continue;
      }
      computed[id] = true;
      for (const Id a : graph_[id].args)
        if (a != kNone) want(a);
    }
    std::reverse(pass.nodes.begin(), pass.nodes.end());
  }
}

// ---- accumulators ----

std::string Printer::both(Region::OfRow::How how, Type of, const std::string& a, const std::string& b,
                          const std::string& result) {
  const std::string t = type(of), operands = " " + t + " " + a + ", " + b;
  const bool floating = is_float(of);
  if (how == Region::OfRow::sum) return line((floating ? "fadd" : "add") + operands, result);
  if (how == Region::OfRow::product) return line((floating ? "fmul" : "mul") + operands, result);
  const bool greatest = how == Region::OfRow::greatest;
  if (of == Type::b1) return line((greatest ? "or" : "and") + operands, result);
  const std::string with = t + " " + b + ", ";
  std::string better = line((floating ? "fcmp o" : "icmp s") + std::string(greatest ? "gt " : "lt ") + with + a);
  // NaN is the greatest and the least.
  if (floating) better = line("or " + type(Type::b1) + " " + better + ", " + line("fcmp uno " + with + b));
  return line("select " + type(Type::b1) + " " + better + ", " + with + t + " " + a, result);
}

// Folds the lanes of a vector into one number, which every lane of the result is.
void Printer::across(Region::OfRow::How how, Type of, std::string v, const std::string& result) {
  for (int64_t apart = lanes_ / 2; apart > 0; apart /= 2) {
    std::string order = "<";
    for (int64_t i = 0; i < lanes_; ++i) order += (i ? ", i32 " : "i32 ") + std::to_string(i ^ apart);
    const std::string other = line("shufflevector " + type(of) + " " + v + ", " + type(of) + " poison, " +
                                   vector_of("i32", lanes_) + " " + order + ">");
    v = both(how, of, v, other, apart == 1 ? result : "");
  }
}

std::string Printer::level(Id fold, int number) { return "%blocks" + to_string(fold) + "_" + std::to_string(number); }
std::string Printer::load_level(Id fold, int number) {
  return line("load " + type(fold) + ", ptr " + level(fold, number) + ", align 64");
}
void Printer::store_level(Id fold, int number, const std::string& v) {
  body_ += "  store " + type(fold) + " " + v + ", ptr " + level(fold, number) + ", align 64\n";
}

// ---- printing ----

void Printer::print_rows() {
  for (const Id id : graph_.ids()) {
    if (!is_in_blocks(id)) continue;
    for (int l = 0; l < region_.levels; ++l) {
      line("alloca " + type(id) + ", align 64", level(id, l));
      store_level(id, l, "zeroinitializer");
    }
  }
  block_ = "start";
  for (size_t number = 0; number < passes_.size(); ++number) {
    for (const Id id : passes_[number].of_row) print_node(id, "", 0);
    if (!passes_[number].folds.empty() || !passes_[number].outputs.empty()) print_pass(number);
  }
  for (size_t k = 0; k < region_.outputs.size(); ++k) {
    if (!region_.is_once(k)) continue;
    const Type t = graph_[region_.outputs[k]].type;
    std::string one = line("extractelement " + type(t) + " " + value(region_.outputs[k], 0) + ", i32 0");
    if (t == Type::b1) one = line("zext i1 " + one + " to i8");
    const std::string pointer = pointer_of("%outputs", "%po", k);
    body_ += std::string("  store ") + in_memory(t) + " " + one + ", ptr " + pointer + "\n";
  }
  body_ += "  ret void\n}\n";
}

bool Printer::is_in_blocks(Id id) const {
  const Region::OfRow* of_row = region_.of_row_at(graph_[id]);
  return of_row && live_[id] && of_row->how == Region::OfRow::sum && is_float(graph_[id].type);
}

void Printer::print_pass(size_t number) {
  const Pass& pass = passes_[number];
  const std::string n = std::to_string(number);
  const Thresholds& limits = thresholds();
  const auto operations = static_cast<int64_t>(pass.nodes.size());
  const int together = operations <= limits.most_together ? static_cast<int>(limits.together) : 1;
  const int64_t step = lanes_ * together;
  const auto accumulator = [&](const char* where, Id id, int part) {
    return "%" + std::string(where) + n + "_" + to_string(id) + "_" + std::to_string(part);
  };
  const auto how = [&](Id id) { return region_.of_row_at(graph_[id])->how; };
  const auto folded = [&](Id id) { return region_.of_row_at(graph_[id])->folded; };
  const auto none = [&](Id id) { return splat(identity(how(id), graph_[id].type), lanes_); };
  const auto branch = [&](const std::string& if_true, const std::string& yes, const std::string& no) {
    body_ += "  br i1 " + if_true + ", label %" + yes + n + ", label %" + no + n + "\n";
  };
  const auto begin_block = [&](const std::string& name) { body_ += (block_ = name + n) + ":\n"; };
  const bool blocks =
      region_.levels > 0 && std::any_of(pass.folds.begin(), pass.folds.end(), [&](Id id) { return is_in_blocks(id); });

  const std::string before = block_;
  const std::string last = line("sub i64 %end, " + std::to_string(step));
  branch(line("icmp sge i64 " + last + ", 0"), "loop", "after");
  begin_block("loop");
  line("phi i64 [ 0, %" + before + " ], [ %next" + n + ", %turned" + n + " ]", "%b" + n);
  for (const Id id : pass.folds)
    for (int part = 0; part < together; ++part)
      line("phi " + type(id) + " [ " + none(id) + ", %" + before + " ], [ " + accumulator("kept", id, part) +
               ", %turned" + n + " ]",
           accumulator("sum", id, part));
  loop_ = "m" + n;
  print_turn(pass.nodes, pass.outputs, "%b" + n, together);
  std::map<std::pair<Id, int>, std::string> added;
  for (const Id id : pass.folds)
    for (int part = 0; part < together; ++part)
      added[{id, part}] = both(how(id), graph_[id].type, accumulator("sum", id, part), value(folded(id), part));
  line("add i64 %b" + n + ", " + std::to_string(step), "%next" + n);
  const auto ends_block = [&](int level) {
    int64_t lanes = step;
    for (int l = 0; l <= level; ++l) lanes *= kBlock;
    return line("icmp eq i64 " + line("and i64 %next" + n + ", " + std::to_string(lanes - 1)) + ", 0");
  };
  const auto tree = [&](Id id, auto part) {
    std::vector<std::string> parts;
    for (int p = 0; p < together; ++p) parts.push_back(part(p));
    for (; parts.size() > 1; parts.resize(parts.size() / 2))
      for (size_t p = 0; p < parts.size() / 2; ++p)
        parts[p] = both(how(id), graph_[id].type, parts[p], parts[p + parts.size() / 2]);
    return parts[0];
  };
  if (blocks) branch(ends_block(0), "level0_", "turned");
  else body_ += "  br label %turned" + n + "\n";
  for (int l = 0; blocks && l < region_.levels; ++l) {
    begin_block("level" + std::to_string(l) + "_");
    for (const Id id : pass.folds) {
      if (!is_in_blocks(id)) continue;
      const std::string sum = l == 0 ? tree(id, [&](int p) { return added.at({id, p}); }) : load_level(id, l - 1);
      store_level(id, l, both(how(id), graph_[id].type, load_level(id, l), sum));
      if (l > 0) store_level(id, l - 1, "zeroinitializer");
    }
    if (l + 1 < region_.levels) branch(ends_block(l + 1), "level" + std::to_string(l + 1) + "_", "turned");
    else body_ += "  br label %turned" + n + "\n";
  }
  begin_block("turned");
  for (const Id id : pass.folds)
    for (int part = 0; part < together; ++part) {
      std::string from = "[ " + added.at({id, part}) + ", %loop" + n + " ]";
      for (int l = 0; blocks && l < region_.levels; ++l)
        from += ", [ " + (is_in_blocks(id) ? none(id) : added.at({id, part})) + ", %level" + std::to_string(l) + "_" +
                n + " ]";
      line("phi " + type(id) + " " + from, accumulator("kept", id, part));
    }
  branch(line("icmp sle i64 %next" + n + ", " + last), "loop", "after");

  begin_block("after");
  line("phi i64 [ 0, %" + before + " ], [ %next" + n + ", %turned" + n + " ]", "%left" + n);
  for (const Id id : pass.folds)
    for (int part = 0; part < together; ++part)
      line("phi " + type(id) + " [ " + none(id) + ", %" + before + " ], [ " + accumulator("kept", id, part) +
               ", %turned" + n + " ]",
           accumulator("all", id, part));
  std::map<Id, std::string> whole;
  for (const Id id : pass.folds) whole[id] = tree(id, [&](int p) { return accumulator("all", id, p); });
  branch(line("icmp slt i64 %left" + n + ", %end"), "rest", "done");

  begin_block("rest");
  const std::string r = "%r" + n;
  line("phi i64 [ %left" + n + ", %after" + n + " ], [ %nextr" + n + ", %rest" + n + " ]", r);
  for (const Id id : pass.folds)
    line("phi " + type(id) + " [ " + whole.at(id) + ", %after" + n + " ], [ " + accumulator("next", id, 0) + ", %rest" +
             n + " ]",
         accumulator("rest", id, 0));
  loop_ = "r" + n;
  const std::string left = line("sub i64 %end, " + r);
  const std::string wide = vector_of("i64", lanes_);
  const std::string one = line("insertelement " + wide + " poison, i64 " + left + ", i32 0");
  const std::string many = line("shufflevector " + wide + " " + one + ", " + wide + " poison, " +
                                vector_of("i32", lanes_) + " zeroinitializer");
  mask_ = line("icmp slt " + wide + " " + counted("i64") + ", " + many);
  masked_ = true;
  print_turn(pass.nodes, pass.outputs, r, 1);
  for (const Id id : pass.folds) {
    const std::string t = type(id);
    const std::string counts = line("select " + type(Type::b1) + " " + mask_ + ", " + t + " " + value(folded(id), 0) +
                                    ", " + t + " " + none(id));
    both(how(id), graph_[id].type, accumulator("rest", id, 0), counts, accumulator("next", id, 0));
  }
  mask_.clear();
  masked_ = false;
  line("add i64 " + r + ", " + std::to_string(lanes_), "%nextr" + n);
  branch(line("icmp slt i64 %nextr" + n + ", %end"), "rest", "done");

  begin_block("done");
  std::map<Id, std::string> sums;
  for (const Id id : pass.folds)
    sums[id] = line("phi " + type(id) + " [ " + whole.at(id) + ", %after" + n + " ], [ " + accumulator("next", id, 0) +
                    ", %rest" + n + " ]");
  for (const Id id : pass.folds) {
    std::string sum = sums.at(id);
    for (int l = 0; is_in_blocks(id) && l < region_.levels; ++l)
      sum = both(how(id), graph_[id].type, sum, load_level(id, l));
    across(how(id), graph_[id].type, sum, value(id, 0));
  }
  for (const Id id : pass.nodes)
    if (std::find(kept_.begin(), kept_.end(), id) != kept_.end()) in_memory_.insert(id);
}

// <i64 0, i64 1, …>
std::string Printer::counted(const char* integer) const {
  std::string text = "<";
  for (int64_t i = 0; i < lanes_; ++i) text += (i ? ", " : "") + std::string(integer) + " " + std::to_string(i);
  return text + ">";
}

// The number of each lane.
void Printer::print_place(Id id, const std::string& begin, int part) {
  const std::string wide = vector_of("i32", lanes_);
  const std::string first = line("trunc i64 " + begin + " to i32");
  const std::string one = line("insertelement " + wide + " poison, i32 " + first + ", i32 0");
  const std::string many =
      line("shufflevector " + wide + " " + one + ", " + wide + " poison, " + wide + " zeroinitializer");
  const std::string here = line("add " + wide + " " + many + ", " + counted("i32"));
  line("add " + wide + " " + here + ", " + splat("i32 " + std::to_string(part * lanes_), lanes_), value(id, part));
}

}  // namespace tower::compiler

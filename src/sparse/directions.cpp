#include "sparse/directions.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "sparse/index.h"
#include "sparse/layout.h"

namespace tower::sparse {

namespace {

constexpr int64_t kFewElements = 16384;  // of all directions, which are then constants of a compiled function
constexpr int64_t kOfParts = 4096;       // elements that all directions move, for which parts are worth their calls
constexpr size_t kMostRuns = 16;         // of rows; each is a call or two
constexpr int64_t kLongestPeriod = 16;   // rows after which colours repeat

// In the place of -1 the one after the last colour.
Tensor groups_of(const std::vector<int64_t>& colours, int64_t count) {
  const Tensor all = as_tensor(colours);
  return at::where(all.lt(0), count, all);
}

// The first `period` colours, if the others repeat them. `any`: what has none goes with each.
std::optional<std::vector<int64_t>> repeated_colours(c10::ArrayRef<int64_t> colours, int64_t period, bool any) {
  std::vector<int64_t> first = colours.slice(0, index(period)).vec();
  for (size_t k = first.size(), place = 0; k < colours.size(); ++k, place = place + 1 == first.size() ? 0 : place + 1) {
    if (colours[k] == first[place] || (any && colours[k] < 0)) continue;
    if (!any || first[place] >= 0) return std::nullopt;
    first[place] = colours[k];
  }
  return first;
}

// Of `blocks` times rows whose entries have these colours, from `row` on in the derivatives of one output, the entries.
Tensor entries_of(const InParts& found, int64_t row, int64_t blocks, const std::vector<std::vector<int64_t>>& colours) {
  const int64_t rows = found[0].numel() / found[0].size(0), period = static_cast<int64_t>(colours.size()),
                n = blocks * period;
  // A function that is mapped over examples then gives them as they are to lie.
  const bool is_mapped = found[0].dim() > 1;
  const int64_t of_example = is_mapped ? rows / found[0].size(1) : rows;
  const bool by_examples = is_mapped && n == rows && of_example % period == 0;
  const int64_t size = by_examples ? of_example : period;
  dynamic::Tensors used;
  std::vector<int64_t> number;  // of each colour: among the directions in `used`
  int64_t first = 0, directions = 0;
  for (const Tensor& part : found) {
    const int64_t many = part.size(0), end = first + many;
    for (int64_t k = 0; k < many; ++k) number.push_back(directions + k);
    const auto has_one = [&](const std::vector<int64_t>& of_row) {
      return std::any_of(of_row.begin(), of_row.end(), [&](int64_t c) { return first <= c && c < end; });
    };
    if (std::any_of(colours.begin(), colours.end(), has_one)) {
      used.push_back(by_examples ? part : part.reshape({many, rows}).narrow(1, row, n).reshape({many, blocks, period}));
      directions += many;
    }
    first = end;
  }
  std::vector<int64_t> places;
  for (int64_t r = 0; r < size; ++r)
    for (const int64_t colour : colours[index(r % period)]) places.push_back(number[index(colour)] * size + r);
  const auto of_one = [&](dynamic::Tensors one) {
    for (Tensor& t : one) t = t.reshape({t.size(0) * size});
    const Tensor all = one.size() == 1 ? one[0] : at::cat(one);
    return dynamic::Tensors{all.index_select(0, as_tensor(places).to(all.device()))};
  };
  return dynamic::vmap(of_one, dynamic::Dims(used.size(), 1), {0})(used)[0].reshape(-1);
}

}  // namespace

// ---- directions ----

Directions::Directions(Colouring colours, bool others_move_nothing)
    : colouring_(std::move(colours)),
      others_move_nothing_(others_move_nothing),
      group_(groups_of(colouring_.colours, colouring_.count)) {}

// Along the first dimensions of a tensor the colours may repeat: all rows of a table then move along the same unit
// vectors, and an expanded tensor says so.
Tensor Directions::of(const Tensor& like, int64_t start) const {
  const at::IntArrayRef sizes = like.sizes();
  std::vector<int64_t> all{count()};
  all.insert(all.end(), sizes.begin(), sizes.end());
  if (like.numel() == 0) return at::zeros(all, like.options());
  const c10::ArrayRef<int64_t> colours = c10::ArrayRef(colouring_.colours).slice(index(start), index(like.numel()));
  int64_t repeated = like.dim(), period = 1;
  auto once = repeated_colours(colours, period, others_move_nothing_);
  while (!once && --repeated > 0) {
    period *= sizes[index(repeated)];
    once = repeated_colours(colours, period, others_move_nothing_);
  }
  if (!once) period = like.numel();
  Tensor directions;
  if (count() * period <= kFewElements) {
    std::vector<int64_t> units(index(count() * period), 0);
    for (size_t k = 0; k < index(period); ++k)
      if (const int64_t colour = once ? (*once)[k] : colours[k]; colour >= 0) units[index(colour * period) + k] = 1;
    directions = as_tensor(units).to(like.device(), like.scalar_type());
  } else {
    const Tensor group = once ? groups_of(*once, count()) : group_.narrow(0, start, period);
    directions = at::zeros({count() + 1, period}, like.options())
                     .scatter_(0, group.to(like.device()).unsqueeze(0), 1)
                     .narrow(0, 0, count());
  }
  if (repeated <= 0) return directions.view(all);
  std::vector<int64_t> of_once = all;
  std::fill(of_once.begin() + 1, of_once.begin() + 1 + repeated, 1);
  return directions.view(of_once).expand(all);
}

std::vector<Directions::Part> Directions::parts(const std::vector<Tensor>& like) const {
  const std::vector<Part> one{{0, count(), std::vector<bool>(like.size(), true)}};
  if (like.size() == 1 || count() == 0 || std::ssize(colouring_.colours) < kOfParts) return one;
  std::vector<std::vector<bool>> moves(index(count()), std::vector<bool>(like.size()));
  const int64_t* colour = colouring_.colours.data();
  for (size_t k = 0; k < like.size(); ++k)
    for (const int64_t* end = colour + like[k].numel(); colour != end; ++colour)
      if (*colour >= 0) moves[index(*colour)][k] = true;
  std::vector<Part> result;
  for (int64_t c = 0; c < count(); ++c) {
    if (!result.empty() && result.back().moves == moves[index(c)]) result.back().end = c + 1;
    else result.push_back({c, c + 1, moves[index(c)]});
  }
  return result.size() <= like.size() ? result : one;
}

// ---- entries ----

std::optional<Runs> Runs::of(const Sparsity& pattern, const std::vector<int64_t>& places) {
  const int64_t rows = pattern.num_rows();
  const auto start = [&](int64_t r) { return index(pattern.starts()[index(r)]); };
  std::vector<int64_t> colours;  // of each entry
  colours.reserve(places.size());
  for (int64_t r = 0; r < rows; ++r)
    for (size_t k = start(r); k < start(r + 1); ++k) {
      colours.push_back(places[k] / rows);
      if (places[k] != colours.back() * rows + r) return std::nullopt;
    }
  const auto of_row = [&](int64_t r) {
    return c10::ArrayRef<int64_t>(colours).slice(start(r), start(r + 1) - start(r));
  };
  Runs result;
  for (int64_t r = 0; r < rows;) {
    if (result.runs_.size() == kMostRuns) return std::nullopt;
    // The period by which most rows are equal. As many are by its multiples.
    int64_t best = 1, blocks = 1;
    for (int64_t period = 1; period <= kLongestPeriod; ++period) {
      if (blocks > 1 && period % best == 0) continue;
      int64_t end = r + period;
      while (end < rows && of_row(end) == of_row(end - period)) ++end;
      const int64_t found = (end - r) / period;
      if (end <= rows && found > 1 && found * period > blocks * best) best = period, blocks = found;
    }
    Run run{blocks, {}};
    for (int64_t k = 0; k < best; ++k) run.colours.push_back(of_row(r + k).vec());
    result.runs_.push_back(std::move(run));
    r += blocks * best;
  }
  return result;
}

Tensor Runs::entries(const std::vector<InParts>& found) const {
  std::vector<Tensor> parts;
  size_t k = 0;
  int64_t row = 0;  // of output k
  for (const Run& run : runs_) {
    const std::vector<std::vector<int64_t>>& colours = run.colours;
    const auto period = static_cast<int64_t>(colours.size());
    for (int64_t left = run.blocks * period; left > 0;) {
      const int64_t rows = found[k][0].numel() / found[k][0].size(0), n = std::min(left, rows - row);
      // Where an output ends, the rest of a block is in the next one.
      const int64_t first = (period - left % period) % period;
      const auto take = [&](int64_t from, int64_t times, int64_t begin, int64_t size) {
        if (times == 0 || size == 0) return;
        std::vector<std::vector<int64_t>> some(colours.begin() + begin, colours.begin() + begin + size);
        if (std::any_of(some.begin(), some.end(), [](const auto& of_row) { return !of_row.empty(); }))
          parts.push_back(entries_of(found[k], from, times, some));
      };
      const int64_t rest = std::min(n, (period - first) % period), whole = (n - rest) / period;
      take(row, 1, first, rest);
      take(row + rest, whole, 0, period);
      take(row + rest + whole * period, 1, 0, n - rest - whole * period);
      left -= n;
      row += n;
      if (row == rows) ++k, row = 0;
    }
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace tower::sparse

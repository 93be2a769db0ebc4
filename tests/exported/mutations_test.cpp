// What is read of a file, changed by chance: hundreds of texts of each kind. Each is an error that names the file, or
// it is read; nothing else is thrown, and nothing is read that is not there.
#include "exported/mutations.h"

#include "exported/archive.h"
#include "exported/guards.h"
#include "exported/models.h"
#include "exported/pickle.h"
#include "exported/rewritten.h"
#include "exported/sizes.h"
#include "support/prelude.h"
#include "tower/exported.h"

namespace {

using exported_models::Draw;
using exported_models::entries_of;
using exported_models::Exported;
using exported_models::find;
using exported_models::with_other_bytes;
using exported_models::with_other_json;
using exported_models::written;
using exported_models::zip;

/// Whether the file is refused; the error has to say which file it is, and what is wrong.
bool is_refused(const std::string& path) {
  try {
    td::load_exported(path);
    return false;
  } catch (const tower::Error& e) {
    const std::string text = e.what();
    EXPECT_TRUE(contains(text, path) && text.size() > path.size() + 20) << text.substr(0, 500);
    return true;
  }
}

TEST_F(Exported, JsonWithOtherStructureIsAnErrorOrIsRead) {
  Draw draw(11);
  int refused = 0;
  constexpr int kTries = 500;
  for (int n = 0; n < kTries; ++n) {
    const char* const name = n % 3 == 0 ? "experts" : n % 3 == 1 ? "sizes" : "cumulative";
    auto entries = entries_of(name);
    std::string& text =
        find(entries, n % 5 == 4 ? "data/weights/model_weights_config.json" : "models/model.json").bytes;
    text = with_other_json(text, draw);
    refused += is_refused(written(zip(entries)));
  }
  // Much of a file is what nobody reads: metadata, stack traces, sizes of what lies between.
  EXPECT_GT(refused, kTries / 5);
}

TEST_F(Exported, ArchivesWhoseDirectoryIsAnotherAreErrorsOrAreRead) {
  Draw draw(12);
  const auto entries = entries_of("perceptron");
  const uint32_t numbers[] = {0, 1, 0x7fffffff, 0xfffffffe, 0xffffffff};
  for (int n = 0; n < 200; ++n) {
    auto changed = entries;
    auto& entry = changed[draw() % changed.size()];
    switch (n % 5) {
      case 0:
        entry.stated_size = n % 2 ? static_cast<uint32_t>(draw()) : numbers[draw() % std::size(numbers)];
        break;
      case 1:
        entry.stated_offset = n % 2 ? static_cast<uint32_t>(draw()) : numbers[draw() % std::size(numbers)];
        break;
      case 2:
        entry.name = with_other_bytes(entry.name, draw);
        break;
      case 3:
        std::swap(entry.bytes, changed[draw() % changed.size()].bytes);
        break;
      default:
        changed.push_back(entry);
    }
    is_refused(written(zip(changed)));
  }
}

TEST_F(Exported, PicklesWithOtherBytesAreErrorsOrAreRead) {
  Draw draw(13);
  tower::exported::Archive archive(exported_models::file("training.2_8"));
  const std::string pickle = archive.archive("data/weights/model.pt").value().text("data.pkl");
  for (int n = 0; n < 500; ++n) {
    std::string changed = pickle;
    for (int k = n % 4; k >= 0; --k) changed = with_other_bytes(changed, draw);
    try {
      tower::exported::read_pickled_payloads(changed);
    } catch (const tower::exported::FileError&) {
    } catch (const tower::exported::NotSupported&) {
    }
  }
}

TEST_F(Exported, SizesAndGuardsWithOtherBytesAreErrorsOrAreRead) {
  Draw draw(14);
  const std::string size =
                        "Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), FloorDiv(Integer(-7), Max("
                        "Symbol('s1', integer=True), Pow(Integer(3), Integer(2)))))",
                    guard = "(L['x'].size()[1] % 2) == 0 and max(L['options']['n'], 4) // 3 != -abs(5) or not 1 < 2";
  for (int n = 0; n < 1000; ++n) {
    std::string changed = n % 2 ? size : guard;
    for (int k = n % 5; k >= 0; --k) changed = with_other_bytes(changed, draw);
    try {
      if (n % 2) tower::exported::SizeExpression::parse(changed).evaluate({{"s0", 5}, {"s1", -3}});
      else
        tower::exported::Guard(changed, {"x", "options.n"}).holds([](size_t, auto) {
          return std::optional<int64_t>(INT64_MIN);
        });
    } catch (const tower::exported::FileError&) {
    } catch (const tower::exported::NotSupported&) {
    }
  }
}

}  // namespace

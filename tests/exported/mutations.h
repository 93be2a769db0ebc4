// Changes of a file's texts that are made without knowing what they mean: each gives another text of the same kind, by
// a number that is drawn. What reads such files has to say of each where it is wrong, or read it.
#pragma once

#include <random>
#include <string>

namespace exported_models {

using Draw = std::mt19937;

/// One bit, a few bytes cut out, or a piece put in again elsewhere.
std::string with_other_bytes(std::string text, Draw& draw);

/// A JSON document in which one thing is another: a value of another type or a huge number, a field or an element that
/// is missing or there twice, elements in another order, a name that is another one of the document's (of what comes
/// later, or of itself), a list of many more elements, a list in lists a thousand deep.
std::string with_other_json(const std::string& text, Draw& draw);

}  // namespace exported_models

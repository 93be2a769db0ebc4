// What torch.save writes of a dict of tensors, for files of torch before 2.9: a pickle that says where each tensor lies
// in the archive around it. A pickle is a program for Python's unpickler. Of its instructions, those are read that
// make such a dict; what they would call stands for tensors, or is refused by its name. Nothing is run.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "exported/schema.h"

namespace tower::exported {

/// The tensors of a pickle that is a dict of them by name, of torch.save's archive ("data.pkl"); the records are of
/// that archive. Throws FileError where it is none, NotSupported where it calls something else.
std::map<std::string, Payload> read_pickled_payloads(std::string_view pickle);

}  // namespace tower::exported

// operators.h: the operators that the fallback cannot run, by the file that implements them.
//
// Each function registers its operators in a library of one dispatch key.
#pragma once
#include <torch/library.h>

namespace managed::sim {

// Whether an operator is implemented by hand, so that the fallback is not registered for it.
bool written_by_hand(const std::string &name);

void register_memory(torch::Library &m);  // memory.cpp: empty, set_, record_stream
void register_copies(torch::Library &m);  // copy.cpp: copy_, _copy_from
void register_sparse_copies(torch::Library &m);
// Copies bytes for the bridge, at once and without telling the clock.
void copy_bytes(int to, void *target, int from, const void *source, std::size_t bytes);
void register_rnn(torch::Library &m);       // rnn.cpp
void register_dropout(torch::Library &m);   // composites.cpp: dropout
void register_native_dropout(torch::Library &m);
void register_sync_batch_norm(torch::Library &m);
void register_attention(torch::Library &m); // composites.cpp: which attention kernel is chosen
void register_group_norm(torch::Library &autograd);  // group_norm.cpp: the layout of its derivative
void register_unknown(torch::Library &m);  // unknown.cpp: isfinite, without values
void register_autocast(torch::Library &m);  // autocast.cpp
// group.cpp: process_group(host), a group of torch.distributed's for simulated devices over the host's.
void register_group(torch::Library &own);
void register_timer();  // timer.cpp: DistributedDataParallel's
void register_nested(torch::Library &every, torch::Library &m);  // nested.cpp: the fallback, and what is allowed

}  // namespace managed::sim

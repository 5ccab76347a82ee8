#include "gpipe/distributed/control/collectives.h"

#include <cassert>

namespace gpipe::distributed {

Verdict Collectives::end() {
  const auto found = verdicts_.find({epoch_, begun_});
  assert(found != verdicts_.end());
  Verdict verdict = std::move(found->second);
  verdicts_.erase(found);
  ended_ = begun_;
  return verdict;
}

void Collectives::know(uint32_t epoch, Verdict verdict) {
  if (epoch < epoch_) return;
  const Key key(epoch, verdict.number);
  verdicts_[key] = std::move(verdict);
}

std::optional<Verdict> Collectives::hear(int64_t rank, uint32_t epoch, Agree agree, Time now) {
  if (epoch < epoch_) return std::nullopt;
  const auto poll = polls_.try_emplace({epoch, agree.number}, Poll{Agreement(size_), now}).first;
  Agreement& agreement = poll->second.agreement;
  std::optional<Verdict> verdict;
  if (auto text = agreement.add(rank, std::move(agree.words))) {
    verdict =
        Verdict{agree.number, std::move(*text), agreement.take_values(), agreement.given_up()};
  }
  // The poll is kept until all ranks have come, so that a late rank does not begin a new poll.
  if (agreement.complete()) polls_.erase(poll);
  return verdict;
}

std::vector<Collectives::Decision> Collectives::give_up(Time latest, const std::string& waited) {
  std::vector<Decision> decisions;
  for (auto& [key, poll] : polls_) {
    if (poll.begin > latest) continue;
    if (auto text = poll.agreement.give_up(waited)) {
      decisions.push_back({key.first, {key.second, std::move(*text), {}, 0}});
    }
  }
  return decisions;
}

void Collectives::begin_epoch(uint32_t epoch) {
  epoch_ = epoch;
  begun_ = ended_ = 0;
  polls_.erase(polls_.begin(), polls_.lower_bound({epoch, 0}));
  verdicts_.erase(verdicts_.begin(), verdicts_.lower_bound({epoch, 0}));
}

}  // namespace gpipe::distributed

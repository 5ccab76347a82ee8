#include "experiments/common/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "command/wrap.h"

namespace gpipe::experiments {
namespace {

constexpr char kNotAsked[] = "not asked for (--experiment)";

std::string pad(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, command::display_width(text)), ' ');
  return right ? space + text : text + space;
}

bool may_have_figures(Origin origin) {
  return origin != Origin::kPublished && origin != Origin::kNotRun;
}

bool must_have_figures(Origin origin) {
  return origin == Origin::kMeasured || origin == Origin::kPlanned || origin == Origin::kSimulated;
}

void check(const PublishedTable& table) {
  for (const PublishedRow& row : table.rows) {
    for (const auto& [key, published] : row.figures) {
      const auto column = std::find_if(table.columns.begin(), table.columns.end(),
                                       [&key = key](const Column& c) { return c.key == key; });
      if (column == table.columns.end()) {
        throw std::invalid_argument("row " + row.experiment + ": the table has no column " + key);
      }
      for (const auto& [source, text] : published) {
        const std::vector<std::string>& known = column->sources;
        if (std::find(known.begin(), known.end(), source) != known.end()) continue;
        throw std::invalid_argument("row " + row.experiment + ": column " + key +
                                    " has no source " + source);
      }
    }
  }
}

void check(const PublishedTable& table, const std::string& experiment, const Outcome& outcome) {
  const std::string row = "row " + experiment;
  if (std::none_of(table.rows.begin(), table.rows.end(),
                   [&](const PublishedRow& r) { return r.experiment == experiment; })) {
    throw std::invalid_argument("the table has no " + row);
  }
  for (const auto& [key, value] : outcome.figures) {
    if (std::none_of(table.columns.begin(), table.columns.end(),
                     [&key = key](const Column& c) { return c.key == key; })) {
      throw std::invalid_argument(row + ": the table has no column " + key);
    }
  }
  const bool has = !outcome.figures.empty();
  if ((has && !may_have_figures(outcome.origin)) || (!has && must_have_figures(outcome.origin))) {
    throw std::invalid_argument(row + " is labelled " + to_text(outcome.origin) +
                                (has ? " but has a figure of ours" : " but has no figure of ours"));
  }
  if ((outcome.origin == Origin::kNotRun || outcome.origin == Origin::kFailed) &&
      outcome.note.empty()) {
    throw std::invalid_argument(row + " is labelled " + to_text(outcome.origin) +
                                ": its note must say why");
  }
}

// Converts "1.539", "4.294×" and "21.99±0.13" to JSON.
Json as_json(const std::string& published) {
  const auto number = [](std::string text) -> std::optional<double> {
    absl::StrReplaceAll({{"×", ""}}, &text);
    double value = 0;
    if (absl::SimpleAtod(text, &value)) return value;
    return std::nullopt;
  };
  const std::string plus_minus = "±";
  if (const std::optional<double> value = number(published)) return *value;
  const std::size_t middle = published.find(plus_minus);
  if (middle == std::string::npos) return published;
  const std::optional<double> value = number(published.substr(0, middle));
  const std::optional<double> spread = number(published.substr(middle + plus_minus.size()));
  if (!value || !spread) return published;
  return {{"value", *value}, {"plus_minus", *spread}};
}

using Line = std::vector<std::string>;

// Columns of a table that stay together, with the heading that they share (may be empty).
struct Group {
  std::string heading;
  std::vector<Line> columns;  // [column][line], the first line its own heading
  bool right = true;          // aligned

  std::size_t width(std::size_t column) const {
    std::size_t width = 0;
    for (const std::string& cell : columns[column])
      width = std::max(width, command::display_width(cell));
    // The last column is as wide as the shared heading needs.
    if (column + 1 == columns.size()) {
      std::size_t others = 0;
      for (std::size_t c = 0; c < column; ++c) others += this->width(c) + 2;
      const std::size_t wanted = command::display_width(heading);
      if (wanted > others) width = std::max(width, wanted - others);
    }
    return width;
  }
  std::size_t width() const {
    std::size_t sum = 2 * (columns.size() - 1);
    for (std::size_t c = 0; c < columns.size(); ++c) sum += width(c);
    return sum;
  }
};

std::string trim_right(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// The groups side by side.
std::string block(const std::vector<Group>& groups) {
  const std::string between = "   ";
  std::string headings;
  std::size_t width = 0;
  for (const Group& group : groups) {
    headings +=
        (headings.empty() && width == 0 ? "" : between) + pad(group.heading, group.width(), false);
    width += group.width() + (width == 0 ? 0 : between.size());
  }
  std::string text = trim_right(headings) + "\n";
  const std::size_t lines = groups.at(0).columns.at(0).size();
  for (std::size_t l = 0; l < lines; ++l) {
    std::string line;
    for (const Group& group : groups) {
      if (&group != &groups.front()) line += between;
      for (std::size_t c = 0; c < group.columns.size(); ++c) {
        if (c > 0) line += "  ";
        line += pad(group.columns[c][l], group.width(c), group.right);
      }
    }
    text += trim_right(line) + "\n";
    if (l == 0) text += std::string(width, '-') + "\n";
  }
  return text;
}

// A paragraph below the table.
std::string paragraph(const std::string& text, std::size_t columns) {
  return command::wrap(text, columns, 0, 2);
}

}  // namespace

std::string to_text(Origin origin) {
  switch (origin) {
    case Origin::kMeasured:
      return "measured";
    case Origin::kInterrupted:
      return "interrupted";
    case Origin::kFailed:
      return "failed";
    case Origin::kPlanned:
      return "planned";
    case Origin::kSimulated:
      return "simulated";
    case Origin::kPublished:
      return "published";
    case Origin::kNotRun:
      return "not run";
  }
  throw std::invalid_argument("unknown origin");
}

std::string three_digits(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  char text[512];
  int after_point = 2;
  if (value != 0) {
    // Rounded to three digits first: 9.996 is 10.0.
    std::snprintf(text, sizeof text, "%.2e", value);
    after_point = std::max(2 - std::atoi(std::strchr(text, 'e') + 1), 0);
  }
  std::snprintf(text, sizeof text, "%.*f", std::min(after_point, 12), value);
  return text;
}

Report::Report(PublishedTable table, std::map<std::string, Outcome> outcomes)
    : table_(std::move(table)), outcomes_(std::move(outcomes)) {
  check(table_);
  for (const auto& [experiment, outcome] : outcomes_) check(table_, experiment, outcome);
  for (const PublishedRow& row : table_.rows) {
    Outcome& outcome = outcomes_[row.experiment];
    if (!row.no_counterpart.empty()) {
      outcome.origin = Origin::kPublished;
      outcome.note = row.no_counterpart;
    } else if (outcome.origin == Origin::kNotRun && outcome.note.empty()) {
      outcome.note = kNotAsked;
    }
  }
  if (table_.ratio.empty()) return;
  // A run that was stopped or failed gets no ratio, and is not the reference of one.
  const Outcome& reference = outcomes_.at(table_.reference);
  for (auto& [experiment, outcome] : outcomes_) {
    if (reference.origin != Origin::kMeasured || outcome.origin != Origin::kMeasured) continue;
    outcome.figures[table_.ratio] = outcome.figures.at(table_.of) / reference.figures.at(table_.of);
  }
}

void Report::add_remark(const std::string& remark) { remarks_.push_back(remark); }

std::string Report::to_text(std::size_t columns) const {
  Group first;
  first.right = false;
  first.columns = {{"experiment"}, {"origin"}};
  for (const PublishedRow& row : table_.rows) {
    first.columns[0].push_back(row.experiment);
    first.columns[1].push_back(gpipe::experiments::to_text(outcomes_.at(row.experiment).origin));
  }
  std::vector<std::vector<Group>> blocks;
  std::size_t width = 0;
  for (const Column& column : table_.columns) {
    Group group;
    group.heading = column.heading;
    group.columns = {{"ours"}};
    for (const PublishedRow& row : table_.rows) {
      const auto& figures = outcomes_.at(row.experiment).figures;
      const auto ours = figures.find(column.key);
      group.columns[0].push_back(ours == figures.end() ? "-" : three_digits(ours->second));
    }
    for (const std::string& source : column.sources) {
      Line line = {source};
      for (const PublishedRow& row : table_.rows) {
        const auto published = row.figures.find(column.key);
        const bool has = published != row.figures.end() && published->second.count(source) > 0;
        line.push_back(has ? published->second.at(source) : "-");
      }
      group.columns.push_back(std::move(line));
    }
    if (blocks.empty() || width + 3 + group.width() > columns) {
      blocks.push_back({first});
      width = first.width();
    }
    width += 3 + group.width();
    blocks.back().push_back(std::move(group));
  }

  std::string text = paragraph(table_.title, columns);
  for (const std::vector<Group>& groups : blocks) text += "\n" + block(groups);

  // A note that several rows share is shown once.
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;
  for (const PublishedRow& row : table_.rows) {
    const std::string& note = outcomes_.at(row.experiment).note;
    if (note.empty()) continue;
    const auto same =
        std::find_if(notes.begin(), notes.end(), [&](const auto& n) { return n.first == note; });
    if (same == notes.end()) {
      notes.push_back({note, {row.experiment}});
    } else {
      same->second.push_back(row.experiment);
    }
  }
  if (!notes.empty()) text += "\n";
  for (const auto& [note, rows] : notes) {
    text += paragraph(absl::StrJoin(rows, ", ") + ": " + note, columns);
  }
  if (!remarks_.empty()) text += "\n";
  for (const std::string& remark : remarks_) text += paragraph(remark, columns);
  return text;
}

std::string Report::to_json() const {
  Json json;
  json["title"] = table_.title;
  json["remarks"] = remarks_;
  json["rows"] = Json::array();
  for (const PublishedRow& row : table_.rows) {
    const Outcome& outcome = outcomes_.at(row.experiment);
    Json figures = Json::object();
    for (const Column& column : table_.columns) {
      const auto ours = outcome.figures.find(column.key);
      Json figure;
      figure["ours"] = ours != outcome.figures.end() && std::isfinite(ours->second)
                           ? Json(ours->second)
                           : Json(nullptr);
      figure["published"] = Json::object();
      const auto published = row.figures.find(column.key);
      if (published != row.figures.end()) {
        for (const auto& [source, text] : published->second) {
          figure["published"][source] = as_json(text);
        }
      }
      figures[column.key] = figure;
    }
    json["rows"].push_back({{"experiment", row.experiment},
                            {"origin", gpipe::experiments::to_text(outcome.origin)},
                            {"note", outcome.note},
                            {"settings", outcome.settings},
                            {"epochs", outcome.epochs},
                            {"figures", figures}});
  }
  return json.dump(2) + "\n";
}

}  // namespace gpipe::experiments

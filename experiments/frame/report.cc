#include "experiments/frame/report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
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

bool has_source(const Column& column, const std::string& source) {
  return std::find(column.sources.begin(), column.sources.end(), source) != column.sources.end();
}

void check(const PublishedTable& table) {
  for (const Column& column : table.columns) {
    if (column.compared_with.empty() || has_source(column, column.compared_with)) continue;
    throw std::invalid_argument("column " + column.key + " has no source " + column.compared_with);
  }
  for (const PublishedRow& row : table.rows) {
    for (const auto& [key, published] : row.figures) {
      const auto column = std::find_if(table.columns.begin(), table.columns.end(),
                                       [&key = key](const Column& c) { return c.key == key; });
      if (column == table.columns.end()) {
        throw std::invalid_argument("row " + row.experiment + ": the table has no column " + key);
      }
      for (const auto& [source, text] : published) {
        if (has_source(*column, source)) continue;
        throw std::invalid_argument("row " + row.experiment + ": column " + key +
                                    " has no source " + source);
      }
    }
  }
}

// Whether `origin` is a way to obtain figures. A row that is labeled with a way has figures.
bool is_way(Origin origin) {
  return origin == Origin::kMeasured || origin == Origin::kPlanned || origin == Origin::kSimulated;
}

void check(const PublishedTable& table, const std::string& experiment, const Outcome& outcome) {
  const std::string row = "row " + experiment;
  if (std::none_of(table.rows.begin(), table.rows.end(),
                   [&](const PublishedRow& r) { return r.experiment == experiment; })) {
    throw std::invalid_argument("the table has no " + row);
  }
  if (!is_way(outcome.way) || (is_way(outcome.origin) && outcome.origin != outcome.way)) {
    throw std::invalid_argument(row + " is labeled " + to_text(outcome.origin) + ", its way is " +
                                to_text(outcome.way));
  }
  for (const auto& [key, value] : outcome.figures) {
    if (std::none_of(table.columns.begin(), table.columns.end(),
                     [&key = key](const Column& c) { return c.key == key; })) {
      throw std::invalid_argument(row + ": the table has no column " + key);
    }
  }
  const bool has_figures = !outcome.figures.empty();
  if ((has_figures && !may_have_figures(outcome.origin)) ||
      (!has_figures && is_way(outcome.origin))) {
    throw std::invalid_argument(
        row + " is labeled " + to_text(outcome.origin) +
        (has_figures ? " but has a figure of ours" : " but has no figure of ours"));
  }
  if ((outcome.origin == Origin::kNotRun || outcome.origin == Origin::kFailed) &&
      outcome.note.empty()) {
    throw std::invalid_argument(row + " is labeled " + to_text(outcome.origin) +
                                ": its note must say why");
  }
}

// The number of "1.539", "4.294×", "20.3 GiB" or "3.8GB"; none for a text that is not a number. GB
// stay as published: whether GiB were meant is not known.
std::optional<double> number(std::string text) {
  absl::StrReplaceAll({{"×", ""}, {" GiB", ""}, {"GB", ""}}, &text);
  double value = 0;
  if (absl::SimpleAtod(text, &value)) return value;
  return std::nullopt;
}

// Converts "1.539", "4.294×" and "21.99±0.13" to JSON.
Json as_json(const std::string& published) {
  const std::string plus_minus = "±";
  if (const std::optional<double> value = number(published)) return *value;
  const std::size_t middle = published.find(plus_minus);
  if (middle == std::string::npos) return published;
  const std::optional<double> value = number(published.substr(0, middle));
  const std::optional<double> spread = number(published.substr(middle + plus_minus.size()));
  if (!value || !spread) return published;
  return {{"value", *value}, {"plus_minus", *spread}};
}

Json number_or_null(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

std::optional<double> figure_of(const Outcome& outcome, const Column& column) {
  const auto figure = outcome.figures.find(column.key);
  if (figure == outcome.figures.end()) return std::nullopt;
  return figure->second;
}

// The published figure; empty if there is none.
std::string published_of(const PublishedRow& row, const Column& column, const std::string& source) {
  const auto figures = row.figures.find(column.key);
  if (figures == row.figures.end()) return "";
  const auto figure = figures->second.find(source);
  return figure == figures->second.end() ? "" : figure->second;
}

// Whether the figures can be compared with the published ones. True for a planned row that failed,
// too: the published figure stands beside it.
bool of_published_size(const Outcome& outcome) {
  if (outcome.origin == Origin::kPublished || outcome.way != Origin::kMeasured) return true;
  return outcome.settings.value("scale", "") == "full" && !outcome.settings.contains("changed");
}

// Our figure as a multiple of the published one; none if the two cannot be compared.
std::optional<double> compare(const PublishedRow& row, const Outcome& outcome,
                              const Column& column) {
  if (column.compared_with.empty() || !of_published_size(outcome)) return std::nullopt;
  const std::optional<double> ours = figure_of(outcome, column);
  const std::optional<double> theirs = number(published_of(row, column, column.compared_with));
  if (!ours || !theirs || *theirs == 0) return std::nullopt;
  return *ours / *theirs;
}

using Cells = std::vector<std::string>;

// Columns of a table that stay together, with the heading that they share (may be empty).
struct Group {
  std::string heading;
  std::vector<Cells> columns;  // [column][line], the first line its own heading
  bool right = true;           // whether the cells are right-aligned

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

// The groups side by side, with an empty line before each of the lines `gaps`.
std::string block(const std::vector<Group>& groups, const std::vector<std::size_t>& gaps) {
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
    if (std::count(gaps.begin(), gaps.end(), l) > 0) text += "\n";
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
    // The value is first rounded to three digits, because 9.996 must be shown as 10.0.
    std::snprintf(text, sizeof text, "%.2e", value);
    after_point = std::max(2 - std::atoi(std::strchr(text, 'e') + 1), 0);
  }
  std::snprintf(text, sizeof text, "%.*f", std::min(after_point, 12), value);
  return text;
}

Report::Report(PublishedTable table, std::vector<Result> results) : table_(std::move(table)) {
  check(table_);
  for (const Result& result : results) check(table_, result.experiment, result.outcome);
  for (std::size_t row = 0; row < table_.rows.size(); ++row) {
    const PublishedRow& published = table_.rows[row];
    const std::size_t first = rows_.size();
    for (Result& result : results) {
      if (result.experiment != published.experiment) continue;
      for (std::size_t other = first; other < rows_.size(); ++other) {
        if (rows_[other].outcome.way != result.outcome.way) continue;
        throw std::invalid_argument("row " + result.experiment + " is " +
                                    gpipe::experiments::to_text(result.outcome.way) + " twice");
      }
      rows_.push_back({row, std::move(result.outcome), ""});
    }
    if (rows_.size() == first) rows_.push_back({row, {}, ""});
    for (std::size_t r = first; r < rows_.size(); ++r) {
      Outcome& outcome = rows_[r].outcome;
      if (!published.no_counterpart.empty()) {
        outcome.origin = Origin::kPublished;
        outcome.note = published.no_counterpart;
      } else if (outcome.origin == Origin::kNotRun && outcome.note.empty()) {
        outcome.note = kNotAsked;
      }
      rows_[r].label = gpipe::experiments::to_text(outcome.origin);
      if (!is_way(outcome.origin) && rows_.size() - first > 1) {
        rows_[r].label += " (" + gpipe::experiments::to_text(outcome.way) + ")";
      }
      if (is_way(outcome.origin) && outcome.settings.value("disturbed", false)) {
        rows_[r].label += " (disturbed)";
      }
    }
  }
  if (table_.ratio.empty()) return;
  // A run that was stopped or failed gets no ratio, and is not the reference of one.
  std::map<Origin, double> references;
  for (const Row& row : rows_) {
    if (is_way(row.outcome.origin) && table_.rows[row.published].experiment == table_.reference) {
      references[row.outcome.way] = row.outcome.figures.at(table_.ratio_of);
    }
  }
  for (Row& row : rows_) {
    const auto reference = references.find(row.outcome.way);
    if (reference == references.end() || !is_way(row.outcome.origin)) continue;
    const double ratio = row.outcome.figures.at(table_.ratio_of) / reference->second;
    const auto cores = row.outcome.settings.value("cores", int64_t{0});
    if (row.outcome.way == Origin::kMeasured && cores > 0 && ratio > static_cast<double>(cores)) {
      row.outcome.note += absl::StrFormat(
          "; its ratio to %s is left out: it is more than %d, the number of cores, so it reflects "
          "other work on them, or costs of a step outside the layers",
          table_.reference, cores);
      continue;
    }
    row.outcome.figures[table_.ratio] = ratio;
  }
}

void Report::add_remark(const std::string& remark) { remarks_.push_back(remark); }

std::vector<Report::Line> Report::lines() const {
  std::vector<Line> lines;
  for (std::size_t published = 0; published < table_.rows.size(); ++published) {
    const std::size_t first = lines.size();
    for (const Row& row : rows_) {
      // A row that was not run has no line in the table, only its note.
      if (row.published != published || row.outcome.origin == Origin::kNotRun) continue;
      lines.push_back({published, &row, row.outcome.way, row.label});
    }
    const auto comparable = [](const Line& line) { return of_published_size(line.row->outcome); };
    if (std::none_of(lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end(), comparable) &&
        !table_.rows[published].figures.empty()) {
      lines.push_back({published, nullptr, Origin::kPublished,
                       gpipe::experiments::to_text(Origin::kPublished)});
    }
  }
  const auto group_of = [](const Line& line) {
    if (line.row != nullptr && line.row->outcome.origin == Origin::kPublished) return 0;
    const Origin ways[] = {Origin::kPublished, Origin::kPlanned, Origin::kSimulated,
                           Origin::kMeasured};
    return static_cast<int>(std::find(std::begin(ways), std::end(ways), line.way) -
                            std::begin(ways));
  };
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const Line& a, const Line& b) { return group_of(a) < group_of(b); });
  for (std::size_t l = 1; l < lines.size(); ++l) {
    lines[l].begins_group = group_of(lines[l]) != group_of(lines[l - 1]);
  }
  return lines;
}

std::string Report::published_in(const Line& line, const Column& column, const std::string& source,
                                 const std::vector<Line>& lines) const {
  const std::string text = published_of(table_.rows[line.published], column, source);
  if (line.row == nullptr) return text;
  if (!of_published_size(line.row->outcome)) return "";
  if (figure_of(line.row->outcome, column)) return text;
  // If another line of the experiment has a figure of ours in this column, the published figure
  // stands there.
  const bool elsewhere = std::any_of(lines.begin(), lines.end(), [&](const Line& other) {
    return other.published == line.published && other.row != nullptr &&
           of_published_size(other.row->outcome) && figure_of(other.row->outcome, column);
  });
  return elsewhere ? "" : text;
}

// A note that several rows share is shown once. Notes of rows that the table leaves out come last.
std::string Report::notes(std::size_t columns) const {
  struct Note {
    std::string text;
    bool not_run;
    std::vector<std::string> rows;
  };
  std::vector<Note> notes;
  for (const bool not_run : {false, true}) {
    for (const Row& row : rows_) {
      const std::string& note = row.outcome.note;
      if (note.empty() || (row.outcome.origin == Origin::kNotRun) != not_run) continue;
      std::string name = table_.rows[row.published].experiment;
      if (row.outcome.way != Origin::kMeasured) {
        name += " (" + gpipe::experiments::to_text(row.outcome.way) + ")";
      }
      const auto same = std::find_if(notes.begin(), notes.end(), [&](const Note& other) {
        return other.text == note && other.not_run == not_run;
      });
      if (same == notes.end()) {
        notes.push_back({note, not_run, {name}});
      } else {
        same->rows.push_back(name);
      }
    }
  }
  std::string text = notes.empty() ? "" : "\n";
  for (const Note& note : notes) {
    text += paragraph(
        (note.not_run ? "Not run: " : "") + absl::StrJoin(note.rows, ", ") + ": " + note.text,
        columns);
  }
  return text;
}

std::string Report::to_text(std::size_t columns) const {
  const std::vector<Line> lines = this->lines();
  Group first;
  first.right = false;
  first.columns = {{"experiment"}, {"origin"}};
  std::vector<std::size_t> gaps;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    first.columns[0].push_back(table_.rows[lines[l].published].experiment);
    first.columns[1].push_back(lines[l].label);
    if (lines[l].begins_group) gaps.push_back(l + 1);
  }
  std::vector<std::vector<Group>> blocks;
  std::size_t width = 0;
  for (const Column& column : table_.columns) {
    Group group;
    group.heading = column.heading;
    group.columns = {{"ours"}};
    for (const Line& line : lines) {
      const std::optional<double> ours =
          line.row == nullptr ? std::nullopt : figure_of(line.row->outcome, column);
      group.columns[0].push_back(ours ? three_digits(*ours) : "-");
    }
    for (const std::string& source : column.sources) {
      Cells cells = {source};
      for (const Line& line : lines) {
        const std::string published = published_in(line, column, source, lines);
        cells.push_back(published.empty() ? "-" : published);
      }
      group.columns.push_back(std::move(cells));
    }
    if (!column.compared_with.empty()) {
      Cells cells = {"ours/" + column.compared_with};
      for (const Line& line : lines) {
        const std::optional<double> ratio =
            line.row == nullptr ? std::nullopt
                                : compare(table_.rows[line.published], line.row->outcome, column);
        cells.push_back(ratio ? three_digits(*ratio) : "-");
      }
      group.columns.push_back(std::move(cells));
    }
    if (blocks.empty() || width + 3 + group.width() > columns) {
      blocks.push_back({first});
      width = first.width();
    }
    width += 3 + group.width();
    blocks.back().push_back(std::move(group));
  }

  std::string text = paragraph(table_.title, columns);
  for (const std::vector<Group>& groups : blocks) text += "\n" + block(groups, gaps);

  text += notes(columns);
  if (!remarks_.empty()) text += "\n";
  for (const std::string& remark : remarks_) text += paragraph(remark, columns);
  return text;
}

std::string Report::to_json(const ReportSource& source) const {
  Json json;
  json["name"] = source.name;
  json["edition"] = source.edition;
  json["title"] = table_.title;
  json["columns"] = Json::array();
  for (const Column& column : table_.columns) {
    json["columns"].push_back({{"key", column.key},
                               {"heading", column.heading},
                               {"sources", column.sources},
                               {"compared_with", column.compared_with}});
  }
  json["ratio"] =
      table_.ratio.empty()
          ? Json(nullptr)
          : Json({{"key", table_.ratio}, {"of", table_.ratio_of}, {"reference", table_.reference}});
  json["remarks"] = remarks_;
  json["environment"] = source.environment;
  json["command"] = source.command;
  json["rows"] = Json::array();
  for (const Row& row : rows_) {
    const PublishedRow& published = table_.rows[row.published];
    Json figures = Json::object();
    for (const Column& column : table_.columns) {
      Json figure;
      figure["ours"] = number_or_null(figure_of(row.outcome, column));
      figure["published"] = Json::object();
      figure["published_text"] = Json::object();
      for (const std::string& source_name : column.sources) {
        const std::string text = published_of(published, column, source_name);
        if (text.empty()) continue;
        figure["published"][source_name] = as_json(text);
        figure["published_text"][source_name] = text;
      }
      figure["compared"] = number_or_null(compare(published, row.outcome, column));
      figures[column.key] = figure;
    }
    json["rows"].push_back({{"experiment", published.experiment},
                            {"origin", gpipe::experiments::to_text(row.outcome.origin)},
                            {"way", gpipe::experiments::to_text(row.outcome.way)},
                            {"note", row.outcome.note},
                            {"settings", row.outcome.settings},
                            {"epochs", row.outcome.epochs},
                            {"figures", figures}});
  }
  // A command line may have bytes that are not UTF-8. They are replaced.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpipe::experiments

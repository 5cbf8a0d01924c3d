//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write};

/// A page of metrics under construction, within a number of series.
pub struct Page {
    text: String,
    /// Labels that every series has, ready to be written.
    common: String,
    left: usize,
    /// Series that found no room.
    pub dropped: u64,
}

impl Page {
    pub fn new(common: &[(String, String)], series_max: usize) -> Self {
        let mut labels = String::new();
        for (name, value) in common {
            push_label(&mut labels, name, value);
        }
        Page { text: String::new(), common: labels, left: series_max, dropped: 0 }
    }

    pub fn finish(self) -> String {
        self.text
    }

    /// Announces a family. Its series follow.
    pub fn family(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    /// Whether there is room for this many more series; those that find none are counted.
    pub fn has_room(&mut self, series: usize) -> bool {
        if self.left < series {
            self.left = 0;
            self.dropped += series as u64;
            return false;
        }
        self.left -= series;
        true
    }

    /// Writes one series. Ask for room first.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "{name}{{{}{labels}}} {value}", self.common);
    }

    /// Writes a histogram: one count per bound, and one for everything beyond the last.
    pub fn histogram(&mut self, name: &str, labels: &str, bounds: &[u64], counts: &[u64], sum: u64) {
        let mut total = 0;
        for (place, count) in counts.iter().enumerate() {
            total += count;
            let bound = bounds.get(place).map_or("+Inf".to_owned(), |bound| format!("{bound}.0"));
            let _ = writeln!(self.text, "{name}_bucket{{{}{labels}le=\"{bound}\"}} {total}", self.common);
        }
        let _ = writeln!(self.text, "{name}_sum{{{}{labels}}} {sum}", self.common);
        let _ = writeln!(self.text, "{name}_count{{{}{labels}}} {total}", self.common);
    }
}

/// Writes labels one behind the other, each with a comma at its end: Prometheus takes a last one.
pub fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        push_label(&mut text, name, value);
    }
    text
}

fn push_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
    text.push_str("\",");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(labels(&[("topic", "a\"b\\c\nd")]), "topic=\"a\\\"b\\\\c\\nd\",");
    }

    #[test]
    fn a_page_that_is_full_counts_what_it_drops() {
        let mut page = Page::new(&[("cluster".to_owned(), "c".to_owned())], 3);
        page.family("x", "gauge");
        assert!(page.has_room(2));
        page.sample("x", "", 1);
        assert!(!page.has_room(2));
        assert!(!page.has_room(1), "what comes later is not preferred to what came first");
        assert_eq!(page.dropped, 3);
        assert_eq!(page.finish(), "# TYPE x gauge\nx{cluster=\"c\",} 1\n");
    }

    #[test]
    fn a_histogram_adds_up() {
        let mut page = Page::new(&[], 9);
        page.histogram("h", "", &[1, 3], &[2, 0, 5], 40);
        let expected = "h_bucket{le=\"1.0\"} 2\nh_bucket{le=\"3.0\"} 2\nh_bucket{le=\"+Inf\"} 7\nh_sum{} 40\nh_count{} 7\n";
        assert_eq!(page.finish(), expected);
    }
}

//! Which pulls are served, and through which filter.

use std::sync::Arc;

use metaq_store::Filter;
use metaq_wire::{PullHeader, tag_code};

use crate::codes::response_code;
use crate::net::route::{Ask, Refusal};
use crate::policy::{Group, PERMISSION_READ, Snapshot};
use crate::pull::Puller;
use crate::pull::handler::{FLAG_FIXED_RANGE, Pull};

const FLAG_SUBSCRIPTION: i32 = 4;
const SQL92: &str = "SQL92";
const FUNCTION: &str = "FUNCTION";
/// The prefix of a call's text where its type is not given separately.
const FUNCTION_PREFIX: &str = "function:";

/// Why a pull is not served.
pub(super) enum Denial {
    Refused(Refusal),
    /// Its expression is unknown here or may have changed, so Python looks at it.
    UnknownExpression,
}

impl Denial {
    fn refused(code: i32, remark: String) -> Self {
        Denial::Refused(Refusal::new(code, remark))
    }
}

impl Puller {
    pub(super) fn admit(
        &self,
        policy: &Snapshot,
        group: &Group,
        header: &PullHeader<'_>,
        ask: &Ask<'_>,
    ) -> Result<Pull, Denial> {
        self.check_group(policy, group)?;
        let Some(topic) = policy.topic(&header.topic) else {
            let remark = format!("topic[{}] does not exist; create it first", header.topic);
            return Err(Denial::refused(response_code::TOPIC_NOT_EXIST, remark));
        };
        if !topic.client_readable {
            return Err(Denial::Refused(closed_topic(&topic.name)));
        }
        if topic.permission & PERMISSION_READ == 0 {
            let remark =
                format!("topic[{}] is not readable: its permission is {}", topic.name, topic.permission);
            return Err(Denial::refused(response_code::NO_PERMISSION, remark));
        }
        if group.forbidden_topics.contains(&topic.name) {
            let remark = format!("group[{}] is forbidden to consume topic[{}]", group.name, topic.name);
            return Err(Denial::refused(response_code::NO_PERMISSION, remark));
        }
        if header.queue_id < 0 || header.queue_id >= topic.read_queues {
            let remark = format!(
                "queue {} is outside topic[{}], which has {} queues to read",
                header.queue_id, topic.name, topic.read_queues
            );
            return Err(Denial::refused(response_code::INVALID_PARAMETER, remark));
        }
        let filter = if header.system_flag & FLAG_SUBSCRIPTION != 0 {
            self.carried_filter(header, ask.again)?
        } else {
            standing_filter(group, ask.peer.id, header, ask.again)?
        };
        let bytes_max = header
            .bytes_max
            .filter(|bytes| *bytes > 0)
            .map_or(self.settings.bytes_default, |bytes| bytes as usize);
        // A pull alone must not be counted for good: its sender chooses the pairs. The first message begins the count.
        let delivered = group.traffic.find(&topic.name);
        let (group_name, topic_name) = match &delivered {
            Some(delivered) => (Arc::clone(&delivered.group), Arc::clone(&delivered.topic)),
            None => (Arc::from(&*group.name), Arc::from(&*topic.name)),
        };
        Ok(Pull {
            encoding: ask.encoding,
            opaque: ask.header.opaque,
            group: group_name,
            topic: topic_name,
            queue_id: header.queue_id,
            queue_offset: header.queue_offset,
            count_max: (header.count_max.max(1) as usize).min(self.settings.messages_max),
            bytes_max: bytes_max.min(self.settings.bytes_max),
            filter,
            is_fixed_range: header.system_flag & FLAG_FIXED_RANGE != 0,
            broker_id: group.broker_id,
            slow_broker_id: group.slow_broker_id,
            request_code: ask.header.code,
            delivered,
        })
    }

    fn check_group(&self, policy: &Snapshot, group: &Group) -> Result<(), Denial> {
        if policy.permission & PERMISSION_READ == 0 {
            let remark = format!(
                "broker[{}] does not serve messages: its permission is {}",
                self.broker_name, policy.permission
            );
            return Err(Denial::refused(response_code::NO_PERMISSION, remark));
        }
        if !group.client_usable {
            return Err(Denial::Refused(closed_group(&group.name)));
        }
        if !group.consume_enabled {
            let remark = format!("group[{}] is not allowed to consume", group.name);
            return Err(Denial::refused(response_code::NO_PERMISSION, remark));
        }
        Ok(())
    }

    /// The filter that the pull itself carries.
    fn carried_filter(&self, header: &PullHeader<'_>, again: bool) -> Result<Filter, Denial> {
        let expression = header.subscription.as_deref().unwrap_or_default();
        let expression_type = header.expression_type.as_deref().unwrap_or_default();
        if expression.len() > self.settings.filter_bytes_max {
            let remark = format!(
                "the expression of this pull has {} bytes, the limit is {} (pull_filter_bytes_max); use a shorter one",
                expression.len(),
                self.settings.filter_bytes_max
            );
            return Err(Denial::refused(response_code::SUBSCRIPTION_PARSE_FAILED, remark));
        }
        if is_tags(expression_type) {
            return tags_filter(expression, self.settings.tags_max);
        }
        let known = match expression_type {
            SQL92 => self.expressions.find(expression),
            FUNCTION => self.expressions.find(&format!("{FUNCTION_PREFIX}{expression}")),
            _ => None,
        };
        if let Some(filter) = known {
            return Ok(filter);
        }
        if again {
            let remark = "the expression of this pull could not be cached; try again".to_owned();
            return Err(Denial::refused(response_code::SUBSCRIPTION_PARSE_FAILED, remark));
        }
        Err(Denial::UnknownExpression)
    }
}

/// Refuses a client that uses a group of the broker's own.
#[cold]
pub(super) fn closed_group(group: &str) -> Refusal {
    let remark = format!("group[{group}] is the broker's own: no client may use it; choose another group");
    Refusal::new(response_code::NO_PERMISSION, remark)
}

/// Refuses a client that reads a topic which only the broker reads.
#[cold]
pub(super) fn closed_topic(topic: &str) -> Refusal {
    let remark = format!("topic[{topic}] is the broker's own: no client may read it");
    Refusal::new(response_code::NO_PERMISSION, remark)
}

fn tags_filter(expression: &str, tags_max: usize) -> Result<Filter, Denial> {
    let expression = expression.trim();
    if expression.is_empty() || expression == "*" {
        return Ok(Filter::All);
    }
    let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
    let codes: Vec<i64> = tags.take(tags_max + 1).map(tag_code).collect();
    if codes.len() > tags_max {
        let remark = format!("the pull names more than {tags_max} tags, the limit (subscription_tags_max)");
        return Err(Denial::refused(response_code::SUBSCRIPTION_PARSE_FAILED, remark));
    }
    Ok(if codes.is_empty() { Filter::All } else { Filter::Tags(codes.into()) })
}

/// The filter of the subscription that the heartbeats of this connection announced.
fn standing_filter(
    group: &Group,
    connection: u64,
    header: &PullHeader<'_>,
    again: bool,
) -> Result<Filter, Denial> {
    let members = group.members.read();
    let member = members.get(&connection);
    let broadcasting = member.map_or(group.broadcasting, |member| member.broadcasting);
    if broadcasting && !group.broadcast_enabled {
        let remark = format!("group[{}] may not consume in broadcast mode", group.name);
        return Err(Denial::refused(response_code::NO_PERMISSION, remark));
    }
    let own = member.and_then(|member| member.subscription(&header.topic));
    let others = || group.subscriptions.iter().find(|subscription| subscription.topic == header.topic);
    let Some(subscription) = own.or_else(others) else {
        let remark = format!(
            "group[{}] has no subscription to topic[{}]; send a heartbeat first",
            group.name, header.topic
        );
        return Err(Denial::refused(response_code::SUBSCRIPTION_NOT_EXIST, remark));
    };
    if subscription.version < header.subscription_version {
        let expression_type = header.expression_type.as_deref().unwrap_or_default();
        if !is_tags(expression_type) || !is_tags(&subscription.expression_type) {
            // Only the broker applies an expression. Without it, or with an old one, the client would get messages that
            // it does not want, or miss some that it does.
            if !again {
                return Err(Denial::UnknownExpression);
            }
            let remark = format!(
                "the subscription of group[{}] to topic[{}] is newer than its last heartbeat; try again after the next",
                group.name, header.topic
            );
            return Err(Denial::refused(response_code::SUBSCRIPTION_NOT_LATEST, remark));
        }
        // The client has changed its tags or only rebalanced, and its heartbeat is still to come. Clients filter by tag
        // themselves, so it gets everything instead of an error that would stop it until then.
        return Ok(Filter::All);
    }
    if let Some(refusal) = &subscription.refusal {
        return Err(Denial::Refused(refusal.clone()));
    }
    Ok(subscription.filter.clone())
}

fn is_tags(expression_type: &str) -> bool {
    expression_type.is_empty() || expression_type == "TAG"
}

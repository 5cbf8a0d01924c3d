//! One compiled subscription, which all members that have announced the same one share.

use metaq_server::Subscription;
use pyo3::prelude::*;

use crate::server::settings::SubscriptionPolicy;

#[pyclass(frozen, weakref, module = "metaq._core")]
pub struct StandingSubscription {
    subscription: Subscription,
}

#[pymethods]
impl StandingSubscription {
    #[new]
    #[pyo3(signature = (policy))]
    fn new(policy: SubscriptionPolicy) -> Self {
        StandingSubscription { subscription: policy.into() }
    }
}

impl StandingSubscription {
    /// The subscription of a member that announced it with this version. It shares the filter.
    pub fn at_version(&self, version: i64) -> Subscription {
        Subscription { version, ..self.subscription.clone() }
    }
}

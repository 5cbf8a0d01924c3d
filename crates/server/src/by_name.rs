//! A map by name that is cheap to copy and cheap to change: two copies share everything that they have in common.
//!
//! The policy is replaced whole at every change while network threads read it without locks. With a plain map, a new topic
//! would copy all the others. Here a change copies one path: 64 + 64 pointers and one leaf. The depth is fixed, so a lookup
//! is a hash, two steps and a short leaf (12 entries at 50,000 names).

use std::array::from_fn;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;

const FANOUT: usize = 64;
const FANOUT_BITS: u32 = FANOUT.trailing_zeros();

/// A value that carries its own name.
pub trait Named {
    fn name(&self) -> &str;
}

type Leaf<T> = Vec<(u64, Arc<T>)>;
type Branch<T> = [Arc<Leaf<T>>; FANOUT];
type Root<T> = [Arc<Branch<T>>; FANOUT];

pub struct ByName<T> {
    hashing: RandomState,
    root: Arc<Root<T>>,
}

impl<T> Clone for ByName<T> {
    fn clone(&self) -> Self {
        ByName { hashing: self.hashing.clone(), root: Arc::clone(&self.root) }
    }
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        let leaf = Arc::new(Vec::new());
        let branch: Arc<Branch<T>> = Arc::new(from_fn(|_| Arc::clone(&leaf)));
        ByName { hashing: RandomState::default(), root: Arc::new(from_fn(|_| Arc::clone(&branch))) }
    }
}

/// The places of a hash in the root and in the branch.
fn places(hash: u64) -> (usize, usize) {
    let root = hash >> (u64::BITS - FANOUT_BITS);
    let branch = hash >> (u64::BITS - 2 * FANOUT_BITS);
    (root as usize, branch as usize % FANOUT)
}

impl<T: Named> ByName<T> {
    pub fn get(&self, name: &str) -> Option<&T> {
        self.get_shared(name).map(Arc::as_ref)
    }

    pub fn get_shared(&self, name: &str) -> Option<&Arc<T>> {
        let hash = self.hashing.hash_one(name);
        let (root, branch) = places(hash);
        let leaf = &self.root[root][branch];
        leaf.iter().find(|(of, value)| *of == hash && value.name() == name).map(|(_, value)| value)
    }

    /// Adds or replaces the value of this name.
    pub fn insert(&mut self, value: T) {
        self.insert_shared(Arc::new(value));
    }

    pub fn insert_shared(&mut self, value: Arc<T>) {
        let hash = self.hashing.hash_one(value.name());
        let leaf = self.leaf(hash);
        match leaf.iter_mut().find(|(of, old)| *of == hash && old.name() == value.name()) {
            Some((_, old)) => *old = value,
            None => leaf.push((hash, value)),
        }
    }

    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some() {
            let hash = self.hashing.hash_one(name);
            self.leaf(hash).retain(|(of, value)| *of != hash || value.name() != name);
        }
    }

    /// All values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.root.iter().flat_map(|branch| branch.iter()).flat_map(|leaf| leaf.iter()).map(|(_, value)| value)
    }

    /// The leaf of a hash, copied together with the path to it if another map shares them.
    fn leaf(&mut self, hash: u64) -> &mut Leaf<T> {
        let (root, branch) = places(hash);
        Arc::make_mut(&mut Arc::make_mut(&mut Arc::make_mut(&mut self.root)[root])[branch])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Entry(String, u32);

    impl Named for Entry {
        fn name(&self) -> &str {
            &self.0
        }
    }

    #[test]
    fn a_copy_keeps_what_it_had() {
        let mut map = ByName::default();
        for number in 0..10_000 {
            map.insert(Entry(format!("topic-{number}"), number));
        }
        let before = map.clone();
        map.insert(Entry("topic-7".to_owned(), 0));
        map.insert(Entry("new".to_owned(), 1));
        map.remove("topic-8");
        assert_eq!(map.get("topic-7").map(|entry| entry.1), Some(0));
        assert_eq!(map.get("new").map(|entry| entry.1), Some(1));
        assert_eq!(map.get("topic-8"), None);
        assert_eq!(before.get("topic-7").map(|entry| entry.1), Some(7));
        assert_eq!(before.get("topic-8").map(|entry| entry.1), Some(8));
        assert_eq!(before.get("new"), None);
    }

    #[test]
    fn a_change_copies_one_leaf_however_many_names_there_are() {
        let mut map = ByName::default();
        for number in 0..50_000 {
            map.insert(Entry(format!("topic-{number}"), number));
        }
        let before = map.clone();
        map.insert(Entry("new".to_owned(), 0));
        let pairs = || map.root.iter().zip(before.root.iter());
        assert_eq!(pairs().filter(|(new, old)| !Arc::ptr_eq(new, old)).count(), 1);
        let leaves = pairs().flat_map(|(new, old)| new.iter().zip(old.iter()));
        let copied: Vec<usize> =
            leaves.filter(|(new, old)| !Arc::ptr_eq(new, old)).map(|(new, _)| new.len()).collect();
        assert_eq!(copied.len(), 1);
        assert!(copied[0] < 60, "a leaf of {} entries", copied[0]);
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_map_holds(changes in prop::collection::vec(("[ab]{0,3}", prop::option::of(0u32..9)), 0..60)) {
            let mut map = ByName::default();
            let mut plain = HashMap::new();
            for (name, value) in &changes {
                match value {
                    Some(value) => {
                        map.insert(Entry(name.clone(), *value));
                        plain.insert(name.clone(), *value);
                    }
                    None => {
                        map.remove(name);
                        plain.remove(name);
                    }
                }
            }
            for (name, _) in &changes {
                prop_assert_eq!(map.get(name).map(|entry| entry.1), plain.get(name).copied());
            }
        }
    }
}

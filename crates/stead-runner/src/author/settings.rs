//! What authors say about tasks: edges, guards, what failure does.

use std::sync::Arc;

use stead_model::plan::{self, Expression, TaskIndex};

use crate::context::TaskContext;
use crate::function::{Failure, GuardFunction};

use super::Task;

/// What a task's failure does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Nothing new starts, running tasks are cancelled.
    StopAll,
    /// Dependents are skipped, the rest goes on.
    Continue,
    /// Short for `.retry(Retry::times(n))`; stop or continue stay as inherited.
    Retry(u32),
}

/// One or more handles, of tasks with the same or different values.
pub trait After {
    /// Returns plan number and index of each.
    fn into_edges(self) -> Vec<(u32, TaskIndex)>;
}

impl<T> After for Task<T> {
    fn into_edges(self) -> Vec<(u32, TaskIndex)> {
        vec![(self.plan, self.index)]
    }
}

impl<T, const N: usize> After for [Task<T>; N] {
    fn into_edges(self) -> Vec<(u32, TaskIndex)> {
        self.into_iter().map(|task| (task.plan, task.index)).collect()
    }
}

impl<T> After for &[Task<T>] {
    fn into_edges(self) -> Vec<(u32, TaskIndex)> {
        self.iter().map(|task| (task.plan, task.index)).collect()
    }
}

impl<T> After for Vec<Task<T>> {
    fn into_edges(self) -> Vec<(u32, TaskIndex)> {
        self.as_slice().into_edges()
    }
}

macro_rules! after_tuple {
    ($($name:ident),+) => {
        impl<$($name),+> After for ($(Task<$name>,)+) {
            fn into_edges(self) -> Vec<(u32, TaskIndex)> {
                #[expect(non_snake_case, reason = "one name serves type and value")]
                let ($($name,)+) = self;
                vec![$(($name.plan, $name.index)),+]
            }
        }
    };
}

after_tuple!(A);
after_tuple!(A, B);
after_tuple!(A, B, C);
after_tuple!(A, B, C, D);
after_tuple!(A, B, C, D, E);
after_tuple!(A, B, C, D, E, F);
after_tuple!(A, B, C, D, E, F, G);
after_tuple!(A, B, C, D, E, F, G, H);

/// A condition on a task.
#[derive(Clone)]
pub struct Guard(pub(super) Condition);

#[derive(Clone)]
pub(super) enum Condition {
    Expr(String),
    Func(String, GuardFunction),
    Changed((u32, TaskIndex)),
    Failed((u32, TaskIndex)),
    All(Vec<Guard>),
    Any(Vec<Guard>),
    Not(Box<Guard>),
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}

impl Guard {
    /// Returns a guard that is true if the expression is.
    pub fn expr(expression: &str) -> Self {
        Self(Condition::Expr(expression.to_owned()))
    }

    /// Returns a guard that asks a closure; `label` is the reason if it says no.
    pub fn func<F>(label: &str, closure: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<bool, Failure> + Send + Sync + 'static,
    {
        Self(Condition::Func(label.to_owned(), Arc::new(closure)))
    }

    /// Returns a guard that is true if the task changed something.
    pub fn changed<T>(task: Task<T>) -> Self {
        Self(Condition::Changed((task.plan, task.index)))
    }

    /// Returns a guard that is true if the task failed.
    pub fn failed<T>(task: Task<T>) -> Self {
        Self(Condition::Failed((task.plan, task.index)))
    }

    /// Returns a guard that is true if all are.
    pub fn all(guards: impl IntoIterator<Item = Self>) -> Self {
        Self(Condition::All(guards.into_iter().collect()))
    }

    /// Returns a guard that is true if one is.
    pub fn any(guards: impl IntoIterator<Item = Self>) -> Self {
        Self(Condition::Any(guards.into_iter().collect()))
    }

    /// Returns a guard that is true if this one is not.
    #[expect(clippy::should_implement_trait, reason = "a constructor like its siblings")]
    pub fn not(guard: Self) -> Self {
        Self(Condition::Not(Box::new(guard)))
    }

    /// Returns the guard as data; closures are added to `functions`, handles are looked up by `name`.
    pub(super) fn into_model(
        self,
        functions: &mut Vec<GuardFunction>,
        name: &mut dyn FnMut((u32, TaskIndex)) -> String,
    ) -> plan::Guard {
        let expr = |text: String| plan::Guard::Expr { expr: Expression(text.into()), reason: None };
        match self.0 {
            Condition::Expr(text) => expr(text),
            Condition::Changed(task) => expr(format!("changed('{}')", name(task))),
            Condition::Failed(task) => expr(format!("failed('{}')", name(task))),
            Condition::Func(label, closure) => {
                let number = u32::try_from(functions.len()).unwrap_or(u32::MAX);
                functions.push(closure);
                plan::Guard::Function { label, number }
            }
            Condition::All(guards) => {
                plan::Guard::All(guards.into_iter().map(|guard| guard.into_model(functions, name)).collect())
            }
            Condition::Any(guards) => {
                plan::Guard::Any(guards.into_iter().map(|guard| guard.into_model(functions, name)).collect())
            }
            Condition::Not(guard) => plan::Guard::Not(Box::new(guard.into_model(functions, name))),
        }
    }
}

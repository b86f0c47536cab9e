//! Expressions and templates: minijinja, strict, without IO, clock or randomness, and bounded.
//!
//! [`evaluate`] gives the value of a bare expression, [`render`] that of a parameter holding `{{ … }}`,
//! [`render_text`] the text of a file template, [`judge`] the verdict of a task's guards. What the names in
//! them mean comes in as a [`Scope`]. [`references`] says which names a text uses without evaluating it.
//!
//! Bounds: instructions ([`FUEL`]), bytes and elements of a result ([`MAX_OUTPUT`], [`MAX_ELEMENTS`]), and the length
//! of one expression ([`MAX_TOKENS`]), because the parser and code generator recurse over chains.

use std::borrow::Cow;
use std::sync::OnceLock;

use minijinja::machinery::{self, Token, ast};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value as Inner, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};
use stead_model::plan::Expression;
use stead_model::{HostName, TaskName, operation};

mod bounds;
mod builtins;
mod facts;
mod functions;
mod guard;
pub mod quote;
pub mod references;
mod results;
mod scope;
#[cfg(test)]
mod tests;

pub use bounds::{MAX_ELEMENTS, MAX_OUTPUT, MAX_TOKENS};
pub use facts::HostFacts;
pub use guard::{Verdict, judge};
pub use references::{
    NamePath, References, UsedNames, expression_references, template_references, used_names,
};
pub use results::{Finished, Results, Row};
pub use scope::{HostScope, Names, ResultScope, RunScope, Scope};

/// How many instructions one evaluation may take.
pub const FUEL: u64 = 5_000_000;

/// Why an expression or template has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// It cannot be parsed.
    #[error("{message}")]
    Syntax {
        /// What is wrong.
        message: String,
        /// Byte offset in the text, where known.
        offset: Option<usize>,
        /// Line in the text, from 1.
        line: Option<usize>,
    },
    /// `{% … %}` where only `{{ … }}` may stand.
    #[error("`{{% … %}}` is not allowed here; use an expression in `{{{{ … }}}}`")]
    Statement {
        /// Byte offset of the statement.
        offset: usize,
    },
    /// It reads something that is not there.
    #[error("{message}")]
    Undefined {
        /// What is not there.
        message: String,
        /// Line in the text, from 1.
        line: Option<usize>,
    },
    /// Dry run: it reads what only a real run would know.
    #[error("the result of task `{task}` is not known in a dry run")]
    NotKnown {
        /// Whose result.
        task: TaskName,
    },
    /// It reads facts that nobody has gathered yet.
    #[error("the facts of {} are not gathered", listed(hosts))]
    FactsWanted {
        /// Whose.
        hosts: Vec<HostName>,
    },
    /// It took too many instructions.
    #[error("the expression does not end (more than {FUEL} instructions)")]
    OutOfFuel,
    /// Its result, or the expression itself, is too large.
    #[error("{message}")]
    TooLarge {
        /// What is too large.
        message: String,
    },
    /// A boolean was wanted.
    #[error("expected true or false, found {found}")]
    NotBoolean {
        /// What it gave.
        found: String,
    },
    /// Something else went wrong while it was evaluated.
    #[error("{message}")]
    Failed {
        /// What.
        message: String,
        /// Line in the text, from 1.
        line: Option<usize>,
    },
}

impl ExprError {
    /// Returns the byte offset of the problem in the text, where known.
    pub fn offset(&self) -> Option<usize> {
        match self {
            Self::Syntax { offset, .. } => *offset,
            Self::Statement { offset } => Some(*offset),
            Self::Undefined { .. }
            | Self::NotKnown { .. }
            | Self::FactsWanted { .. }
            | Self::OutOfFuel
            | Self::TooLarge { .. }
            | Self::NotBoolean { .. }
            | Self::Failed { .. } => None,
        }
    }

    /// Returns the line of the problem in the text, from 1, where known.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Syntax { line, .. } | Self::Undefined { line, .. } | Self::Failed { line, .. } => *line,
            Self::Statement { .. }
            | Self::NotKnown { .. }
            | Self::FactsWanted { .. }
            | Self::OutOfFuel
            | Self::TooLarge { .. }
            | Self::NotBoolean { .. } => None,
        }
    }

    fn too_large(message: impl Into<String>) -> Self {
        Self::TooLarge { message: message.into() }
    }
}

/// Returns the value of `expression`.
///
/// # Errors
/// If it cannot be parsed, reads what is not there, or exceeds a bound; [`ExprError::NotKnown`] if it reads a result
/// that a dry run does not know, whatever else happens.
pub fn evaluate(expression: &Expression, scope: &Scope) -> Result<Value, ExprError> {
    evaluate_text(&expression.0, scope)
}

/// Returns the value of `expression`, which must be a boolean.
pub fn evaluate_bool(expression: &Expression, scope: &Scope) -> Result<bool, ExprError> {
    let value = evaluate(expression, scope)?;
    value.as_bool().ok_or_else(|| ExprError::NotBoolean { found: operation::describe(&value) })
}

/// Returns the value of the expression `text`; see [`evaluate`].
pub fn evaluate_text(text: &str, scope: &Scope) -> Result<Value, ExprError> {
    bounds::check_expression(text)?;
    let environment = environment(Dialect::Outputs);
    let compiled = environment.compile_expression_owned(Cow::Owned(text.to_owned())).map_err(explain)?;
    let (root, touched) = scope.root();
    let value = compiled.eval(root).map_err(explain).and_then(|value| {
        if value.is_undefined() {
            return Err(ExprError::Undefined {
                message: format!("`{}` is undefined", text.trim()),
                line: None,
            });
        }
        bounds::to_json(&value)
    });
    unknown(scope, &touched).map_or(value, Err)
}

/// Returns what an evaluation met that nobody knows: then its value means nothing, whatever it is.
fn unknown(scope: &Scope, touched: &OnceLock<TaskName>) -> Option<ExprError> {
    let hosts = scope.wanted();
    if !hosts.is_empty() {
        return Some(ExprError::FactsWanted { hosts });
    }
    touched.get().map(|task| ExprError::NotKnown { task: task.clone() })
}

fn listed(hosts: &[HostName]) -> String {
    hosts.iter().map(HostName::as_str).collect::<Vec<_>>().join(", ")
}

/// Whether `text` holds something to render: a `{{`, or a `{% … %}` that [`render`] will refuse.
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || statement(text).is_some()
}

/// Returns what `template` gives: the value itself if it is exactly one `{{ … }}`, else text.
///
/// Only `{{ … }}` means something; `{#` is text (shells use it) and `{% … %}` is refused.
pub fn render(template: &str, scope: &Scope) -> Result<Value, ExprError> {
    if let Some(offset) = statement(template) {
        return Err(ExprError::Statement { offset });
    }
    // Text is what it is, whatever characters it holds.
    if !template.contains("{{") {
        return Ok(Value::String(template.to_owned()));
    }
    bounds::check_template(template, &syntax(Dialect::Outputs))?;
    match only_output(template)? {
        Some(expression) => evaluate_text(expression, scope),
        None => render_with(Dialect::Outputs, template, scope).map(Value::String),
    }
}

/// Returns the text of a file template, in which `{% … %}` and `{# … #}` are allowed, with `vars` over the plan's own.
///
/// The final newline is kept. Errors carry the line.
pub fn render_text(template: &str, vars: &Map<String, Value>, scope: &Scope) -> Result<String, ExprError> {
    bounds::check_template(template, &syntax(Dialect::File))?;
    let scope = if vars.is_empty() { scope.clone() } else { scope.clone().with_vars(vars) };
    render_with(Dialect::File, template, &scope)
}

fn render_with(dialect: Dialect, template: &str, scope: &Scope) -> Result<String, ExprError> {
    let environment = environment(dialect);
    let (root, touched) = scope.root();
    let mut output = bounds::Bounded::default();
    let rendered = environment
        .template_from_named_str("template", template)
        .and_then(|compiled| compiled.render_captured_to(root, &mut output).map(|_| ()))
        .map_err(explain);
    if let Some(error) = unknown(scope, &touched) {
        return Err(error);
    }
    if output.is_full() {
        return Err(ExprError::too_large(format!("the text is larger than {MAX_OUTPUT} bytes")));
    }
    rendered?;
    output.into_text()
}

/// Returns the byte offset of a `{% … %}`, if there is one.
fn statement(text: &str) -> Option<usize> {
    let start = text.find("{%")?;
    text[start..].contains("%}").then_some(start)
}

/// Returns the expression of a template that is exactly one `{{ … }}`.
fn only_output(template: &str) -> Result<Option<&str>, ExprError> {
    let Some(inner) = template.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")) else {
        return Ok(None);
    };
    let parsed = parse_template(template)?;
    let ast::Stmt::Template(root) = &parsed else { return Ok(None) };
    if !matches!(&root.children[..], [ast::Stmt::EmitExpr(_)]) {
        return Ok(None);
    }
    // `{{-` and `-}}` have nothing to trim here.
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    Ok(Some(inner.strip_suffix(['-', '+']).unwrap_or(inner)))
}

fn parse_template(template: &str) -> Result<ast::Stmt<'_>, ExprError> {
    machinery::parse(template, "template", syntax(Dialect::Outputs)).map_err(explain)
}

fn parse_expression(text: &str) -> Result<ast::Expr<'_>, ExprError> {
    machinery::parse_expr(text).map_err(explain)
}

/// Which of the template delimiters mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// `{{ … }}` alone: parameters of a plan.
    Outputs,
    /// All three: template files.
    File,
}

fn syntax(dialect: Dialect) -> SyntaxConfig {
    static SYNTAX: OnceLock<[SyntaxConfig; 2]> = OnceLock::new();
    let [outputs, file] = SYNTAX.get_or_init(|| {
        let mut builder = SyntaxConfig::builder();
        builder.keep_trailing_newline(true);
        let file = builder.build().expect("the default delimiters are valid");
        // Statements and comments cannot be written: nobody has these characters in a text, though YAML could spell them.
        builder
            .block_delimiters("\u{1}\u{2}\u{1}%", "%\u{1}\u{2}\u{1}")
            .comment_delimiters("\u{1}\u{2}\u{1}#", "#\u{1}\u{2}\u{1}");
        [builder.build().expect("these delimiters differ"), file]
    });
    match dialect {
        Dialect::Outputs => outputs.clone(),
        Dialect::File => file.clone(),
    }
}

fn environment(dialect: Dialect) -> &'static Environment<'static> {
    static ENVIRONMENTS: OnceLock<[Environment<'static>; 2]> = OnceLock::new();
    let [outputs, file] = ENVIRONMENTS.get_or_init(|| {
        [Dialect::Outputs, Dialect::File].map(|dialect| {
            let mut environment = Environment::empty();
            environment.set_undefined_behavior(UndefinedBehavior::Strict);
            environment.set_fuel(Some(FUEL));
            // Names what is undefined, in release builds too.
            environment.set_debug(true);
            environment.set_syntax(syntax(dialect));
            environment.set_formatter(|out, state, value| match scalar_text(value) {
                Some(text) => out.write_str(&text).map_err(Error::from),
                None => minijinja::escape_formatter(out, state, value),
            });
            builtins::add_to(&mut environment);
            environment
        })
    });
    match dialect {
        Dialect::Outputs => outputs,
        Dialect::File => file,
    }
}

/// Returns the one text form of booleans and fractions, the same alone and inside a text: `true`, not `True`, and the
/// shortest exact number, `3`, not `3.0`.
fn scalar_text(value: &Inner) -> Option<String> {
    if value.is_integer() {
        return None;
    }
    match value.kind() == ValueKind::Bool {
        true => Some(value.is_true().to_string()),
        false if value.is_number() => f64::try_from(value.clone()).ok().map(|number| number.to_string()),
        false => None,
    }
}

/// Returns minijinja's error as ours: without the name of the template, with its causes.
#[expect(clippy::wildcard_enum_match_arm, reason = "minijinja's other kinds differ in their message alone")]
fn explain(error: Error) -> ExprError {
    let mut message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        let text = match next.downcast_ref::<Error>() {
            Some(inner) => inner.detail().map_or_else(|| inner.kind().to_string(), str::to_owned),
            None => next.to_string(),
        };
        message = format!("{message}: {text}");
        cause = next.source();
    }
    let line = error.line();
    match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => {
            ExprError::Syntax { message, offset: error.range().map(|range| range.start), line }
        }
        ErrorKind::UndefinedError => ExprError::Undefined { message, line },
        ErrorKind::OutOfFuel => ExprError::OutOfFuel,
        _ => ExprError::Failed { message, line },
    }
}

/// Whether `token` ends the chain of tokens that one expression is.
fn ends_expression(token: &Token<'_>) -> bool {
    matches!(token, Token::VariableStart | Token::VariableEnd | Token::BlockStart | Token::BlockEnd)
}

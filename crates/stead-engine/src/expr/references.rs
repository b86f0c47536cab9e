//! Which names a text uses, found in its syntax tree without evaluating it.
//!
//! The walk recurses over the tree, whose depth `bounds` and the parser limit.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr};
use minijinja::value::ValueKind;
use stead_model::diagnostic::suggest;

use super::functions::TASK_FUNCTIONS;
use super::scope::NAMES;
use super::{Dialect, ExprError, bounds, builtins, parse_expression, parse_template, statement, syntax};

/// The names a text uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Members of `vars`.
    pub vars: BTreeSet<String>,
    /// Members of `env`.
    pub env: BTreeSet<String>,
    /// Members of `secrets`.
    pub secrets: BTreeSet<String>,
    /// Members of `run`.
    pub run: BTreeSet<String>,
    /// Hosts whose facts are read by name.
    pub facts: BTreeSet<String>,
    /// Tasks whose result is read.
    pub results: BTreeSet<String>,
    /// Tasks named in functions such as `changed('a')`.
    pub tasks_in_functions: BTreeSet<String>,
    /// Whether a function is called without a task: it asks the direct dependencies.
    pub asks_dependencies: bool,
    /// All top-level names: `vars`, `host`, `item`, …
    pub names: BTreeSet<String>,
    /// Top-level names of which a member is read that is known only when the text is evaluated.
    pub dynamic: BTreeSet<String>,
    /// What means nothing, with its byte offset and what to do.
    pub unknown: Vec<Unknown>,
    /// Byte offsets of `{{ … }}` whose value is not quoted for a shell.
    pub unquoted: Vec<usize>,
}

/// Something in a text that means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// What it is.
    pub message: String,
    /// Where it is in the text.
    pub offset: usize,
    /// What to do.
    pub help: String,
}

impl References {
    /// Whether the text uses the top-level name `name`.
    pub fn uses(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns every task named literally.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.results.union(&self.tasks_in_functions).map(String::as_str)
    }
}

/// What a text of a run manifest uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedNames {
    /// The names, each with the members that are read of it.
    pub paths: Vec<NamePath>,
    /// Filters, tests and functions there are not.
    pub unknown: Vec<Unknown>,
}

/// A name with members: `roles.server.ready` of `roles.server.ready[x]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePath {
    /// The name, then its members.
    pub parts: Vec<String>,
    /// Whether the next member is known only when the text is evaluated.
    pub is_open: bool,
}

/// Returns what a text with `{{ … }}` uses, whatever its names mean, or why it cannot be parsed.
pub fn used_names(text: &str) -> Result<UsedNames, ExprError> {
    let mut walk = Walk { paths: Some(Vec::new()), ..Walk::default() };
    walk.template(text)?;
    Ok(UsedNames { paths: walk.paths.unwrap_or_default(), unknown: walk.found.unknown })
}

/// Returns the names a bare expression uses, or why it cannot be parsed.
pub fn expression_references(text: &str) -> Result<References, ExprError> {
    bounds::check_expression(text)?;
    let mut walk = Walk::default();
    walk.expr(&parse_expression(text)?);
    Ok(walk.found)
}

/// Returns the names a text with `{{ … }}` uses, or why it cannot be parsed.
pub fn template_references(text: &str) -> Result<References, ExprError> {
    let mut walk = Walk::default();
    walk.template(text)?;
    Ok(walk.found)
}

/// Whether a shell reads the value of `expr` as the words it was meant to be.
fn is_quoted(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::Filter(filter) => filter.name == "quote" || filter.expr.as_ref().is_some_and(is_quoted),
        Expr::IfExpr(choice) => {
            is_quoted(&choice.true_expr) && choice.false_expr.as_ref().is_none_or(is_quoted)
        }
        Expr::BinOp(pair) => {
            matches!(pair.op, BinOpKind::Concat) && is_quoted(&pair.left) && is_quoted(&pair.right)
        }
        Expr::Var(_)
        | Expr::Slice(_)
        | Expr::UnaryOp(_)
        | Expr::Compare(_)
        | Expr::Test(_)
        | Expr::GetAttr(_)
        | Expr::GetItem(_)
        | Expr::Call(_)
        | Expr::List(_)
        | Expr::Tuple(_)
        | Expr::Map(_) => false,
    }
}

#[derive(Default)]
struct Walk {
    found: References,
    /// All names with their members, where names are not those of plans.
    paths: Option<Vec<NamePath>>,
}

impl Walk {
    fn template(&mut self, text: &str) -> Result<(), ExprError> {
        if let Some(offset) = statement(text) {
            return Err(ExprError::Statement { offset });
        }
        bounds::check_template(text, &syntax(Dialect::Outputs))?;
        let parsed = parse_template(text)?;
        let ast::Stmt::Template(root) = &parsed else { return Ok(()) };
        for statement in &root.children {
            if let ast::Stmt::EmitExpr(output) = statement {
                if !is_quoted(&output.expr) {
                    self.found.unquoted.push(output.expr.span().start_offset as usize);
                }
                self.expr(&output.expr);
            }
        }
        Ok(())
    }

    /// Notes the path that `expr` is, if paths are what is looked for.
    fn is_path(&mut self, expr: &Expr<'_>) -> bool {
        if self.paths.is_none() {
            return false;
        }
        let Some((path, chosen)) = name_path(expr) else { return false };
        chosen.into_iter().for_each(|member| self.expr(member));
        self.paths.get_or_insert_default().push(path);
        true
    }

    fn expr(&mut self, expr: &Expr<'_>) {
        if self.is_path(expr) {
            return;
        }
        match expr {
            Expr::Const(_) => {}
            Expr::Var(var) => {
                self.name(var.id, var.span().start_offset);
                if matches!(var.id, "vars" | "env" | "secrets" | "results" | "facts") {
                    // The whole map: any member may be read.
                    self.found.dynamic.insert(var.id.to_owned());
                }
            }
            Expr::GetAttr(get) => self.member(&get.expr, Some(get.name)),
            Expr::GetItem(get) => {
                let literal = literal(&get.subscript_expr);
                self.member(&get.expr, literal.as_deref());
                if literal.is_none() {
                    self.expr(&get.subscript_expr);
                }
            }
            Expr::Slice(slice) => {
                self.expr(&slice.expr);
                [&slice.start, &slice.stop, &slice.step]
                    .into_iter()
                    .flatten()
                    .for_each(|part| self.expr(part));
            }
            Expr::UnaryOp(unary) => self.expr(&unary.expr),
            Expr::BinOp(pair) => {
                if !self.is_hyphenated(pair) {
                    self.expr(&pair.left);
                    self.expr(&pair.right);
                }
            }
            Expr::Compare(compare) => {
                self.expr(&compare.expr);
                compare.ops.iter().for_each(|operand| self.expr(&operand.expr));
            }
            Expr::IfExpr(choice) => {
                self.expr(&choice.test_expr);
                self.expr(&choice.true_expr);
                choice.false_expr.iter().for_each(|other| self.expr(other));
            }
            Expr::Filter(filter) => {
                self.known("filter", filter.name, filter.span().start_offset, builtins::filter_names());
                filter.expr.iter().for_each(|inner| self.expr(inner));
                self.arguments(&filter.args);
            }
            Expr::Test(test) => {
                self.known("test", test.name, test.span().start_offset, builtins::TESTS.iter().copied());
                self.expr(&test.expr);
                self.arguments(&test.args);
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => list.items.iter().for_each(|item| self.expr(item)),
            Expr::Tuple(tuple) => tuple.items.iter().for_each(|item| self.expr(item)),
            Expr::Map(map) => map.keys.iter().chain(&map.values).for_each(|item| self.expr(item)),
        }
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(expr)
                | CallArg::Kwarg(_, expr)
                | CallArg::PosSplat(expr)
                | CallArg::KwargSplat(expr) => {
                    self.expr(expr);
                }
            }
        }
    }

    fn call(&mut self, call: &ast::Spanned<ast::Call<'_>>) {
        let Expr::Var(function) = &call.expr else {
            self.expr(&call.expr);
            return self.arguments(&call.args);
        };
        let of_tasks = if self.paths.is_some() { &[][..] } else { TASK_FUNCTIONS };
        if !of_tasks.iter().any(|(name, _)| *name == function.id) {
            let known = builtins::GLOBALS.iter().copied().chain(of_tasks.iter().map(|(name, _)| *name));
            self.known("function", function.id, function.span().start_offset, known);
            return self.arguments(&call.args);
        }
        match &call.args[..] {
            [] => self.found.asks_dependencies = true,
            [CallArg::Pos(task)] => match literal(task) {
                Some(task) => {
                    self.found.tasks_in_functions.insert(task);
                }
                None => {
                    self.found.dynamic.insert(function.id.to_owned());
                    self.expr(task);
                }
            },
            _ => {
                self.unknown(
                    format!("`{}` takes one task name, or nothing", function.id),
                    function.span().start_offset,
                    String::new(),
                );
                self.arguments(&call.args);
            }
        }
    }

    /// Notes `base.member`, or `base[…]` with a member that is not literal.
    fn member(&mut self, base: &Expr<'_>, member: Option<&str>) {
        let Expr::Var(var) = base else { return self.expr(base) };
        self.name(var.id, var.span().start_offset);
        let found = &mut self.found;
        let members = match var.id {
            "vars" => &mut found.vars,
            "env" => &mut found.env,
            "secrets" => &mut found.secrets,
            "run" => &mut found.run,
            "results" => &mut found.results,
            "facts" => &mut found.facts,
            _ => return,
        };
        match member {
            Some(member) => members.insert(member.to_owned()),
            None => found.dynamic.insert(var.id.to_owned()),
        };
    }

    fn name(&mut self, name: &str, offset: u32) {
        if NAMES.contains(&name) {
            self.found.names.insert(name.to_owned());
        } else if TASK_FUNCTIONS.iter().any(|(function, _)| *function == name) {
            let help = format!("write `{name}()` or `{name}('task')`");
            self.unknown(format!("`{name}` is a function"), offset, help);
        } else {
            let help = suggest(name, NAMES.iter().copied());
            self.unknown(format!("the name `{name}` means nothing here"), offset, help);
        }
    }

    fn known(&mut self, kind: &str, name: &str, offset: u32, candidates: impl Iterator<Item = &'static str>) {
        let candidates: Vec<&str> = candidates.collect();
        if !candidates.contains(&name) {
            let help = suggest(name, candidates);
            self.unknown(format!("there is no {kind} `{name}`"), offset, help);
        }
    }

    fn unknown(&mut self, message: String, offset: u32, help: String) {
        self.found.unknown.push(Unknown { message, offset: offset as usize, help });
    }

    /// Whether `pair` is `results.a-b`, which subtracts where a task `a-b` was meant; notes it if so.
    fn is_hyphenated(&mut self, pair: &ast::Spanned<ast::BinOp<'_>>) -> bool {
        let Some(name) = hyphenated(pair) else { return false };
        let offset = pair.span().start_offset;
        let help = format!("write `results['{name}']`");
        self.unknown(format!("`results.{name}` subtracts: a name with `-` needs brackets"), offset, help);
        true
    }
}

/// Returns `a-b` for `results.a-b`, `results.a-b.status` and longer ones.
fn hyphenated(pair: &ast::BinOp<'_>) -> Option<String> {
    if !matches!(pair.op, BinOpKind::Sub) {
        return None;
    }
    let left = if let Expr::BinOp(inner) = &pair.left {
        hyphenated(inner)?
    } else if let Expr::GetAttr(get) = &pair.left
        && matches!(&get.expr, Expr::Var(var) if var.id == "results")
    {
        get.name.to_owned()
    } else {
        return None;
    };
    let mut right = &pair.right;
    loop {
        if let Expr::GetAttr(get) = right {
            right = &get.expr;
        } else if let Expr::GetItem(get) = right {
            right = &get.expr;
        } else {
            break;
        }
    }
    if let Expr::Var(var) = right {
        return (!NAMES.contains(&var.id)).then(|| format!("{left}-{}", var.id));
    }
    let Expr::Const(number) = right else { return None };
    (number.value.kind() == ValueKind::Number).then(|| format!("{left}-{}", number.value))
}

/// Returns the name with its members that `expr` is, and the expressions that choose further members.
fn name_path<'e, 'a>(expr: &'e Expr<'a>) -> Option<(NamePath, Vec<&'e Expr<'a>>)> {
    let (base, member, chosen) = if let Expr::Var(var) = expr {
        return Some((NamePath { parts: vec![var.id.to_owned()], is_open: false }, Vec::new()));
    } else if let Expr::GetAttr(get) = expr {
        (&get.expr, Some(get.name.to_owned()), None)
    } else if let Expr::GetItem(get) = expr {
        let member = literal(&get.subscript_expr);
        let chosen = member.is_none().then_some(&get.subscript_expr);
        (&get.expr, member, chosen)
    } else {
        return None;
    };
    let (mut path, mut members) = name_path(base)?;
    members.extend(chosen);
    match member {
        Some(member) if !path.is_open => path.parts.push(member),
        Some(_) | None => path.is_open = true,
    }
    Some((path, members))
}

fn literal(expr: &Expr<'_>) -> Option<String> {
    if let Expr::Const(value) = expr { value.value.as_str().map(str::to_owned) } else { None }
}

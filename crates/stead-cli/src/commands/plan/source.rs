//! From the files and flags a person gave to a compiled plan, its inventory and where they came from.
//!
//! Reads files; what they mean is `stead-model`'s and `stead-engine`'s business.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use stead_engine::compile::{Catalogue, CompiledPlan, Inputs, VarFlag, is_usage, plan_file};
use stead_engine::target::{HostSet, TargetExpr};
use stead_model::bundle::{NodesOrigin, PlanMeta};
use stead_model::diagnostic::{Place, Source};
use stead_model::inventory::{Host, Inventory};
use stead_model::report::Warning;
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics, HostName, diagnostic};

use crate::args::{InventoryArgs, PlanSource, VarArgs};
use crate::commands::nodes;
use crate::commands::site::{self, SiteDir};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// One byte more than the largest file, so that a longer one is noticed and not read to its end.
const MOST_BYTES: u64 = (64 << 20) + 1;

/// A plan with where it came from.
pub(crate) struct Loaded {
    /// The plan.
    pub(crate) compiled: CompiledPlan,
    /// The file's bytes.
    pub(crate) bytes: Vec<u8>,
    /// The file, absolute; none for standard input.
    pub(crate) path: Option<PathBuf>,
    /// What relative paths in it start from.
    pub(crate) base_dir: PathBuf,
    /// Variables that were given, with their final values.
    pub(crate) given: BTreeMap<String, Value>,
}

/// What a plan is compiled with besides its file.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// Files of variables.
    pub(crate) vars_files: Vec<PathBuf>,
    /// Variables.
    pub(crate) vars: Vec<VarFlag>,
    /// Environment variables that win over the process's own.
    pub(crate) env: BTreeMap<String, String>,
}

impl From<&VarArgs> for Given {
    fn from(args: &VarArgs) -> Self {
        Self { vars_files: args.vars_file.clone(), vars: args.var.clone(), env: BTreeMap::new() }
    }
}

/// Returns what relative paths in `file` start from.
pub(crate) fn base_dir(file: &PlanSource, settings: &Settings) -> PathBuf {
    match file {
        PlanSource::Stdin => settings.current_dir.clone(),
        PlanSource::File(path) => {
            let path = settings.current_dir.join(path);
            path.parent().map_or_else(|| settings.current_dir.clone(), Path::to_owned)
        }
    }
}

/// Returns the compiled plan of `file`, or every problem in it and in what it was given.
///
/// With an inventory, targets are checked against it.
pub(crate) fn load(
    file: &PlanSource,
    given: &Given,
    inventory: Option<&Inventory>,
    settings: &Settings,
) -> Result<Loaded, Failure> {
    let (name, path) = match file {
        PlanSource::Stdin => ("<stdin>".to_owned(), None),
        PlanSource::File(path) => (path.display().to_string(), Some(settings.current_dir.join(path))),
    };
    let bytes = match &path {
        Some(path) => read(path),
        None => read_all(io::stdin().lock()),
    };
    let bytes = bytes.map_err(|error| unreadable(&name, &error))?;
    let source = yaml::source(&name, bytes.clone(), Codes::PLAN).map_err(Failure::invalid)?;
    let vars_files = sources(&given.vars_files, Codes::PLAN, settings)?;
    let mut env = settings.environment.to_map();
    env.extend(given.env.clone());
    let inputs = Inputs { vars_files, vars: given.vars.clone(), env };
    let mut catalogue = Catalogue::new(stead_drivers::Drivers::standard().descriptors());
    if let Some(inventory) = inventory {
        catalogue = catalogue.with_hosts(inventory.into());
    }
    let compiled = plan_file(&source, &inputs, &catalogue).map_err(refused)?;
    let given =
        given_names(&inputs).filter_map(|name| Some((name.clone(), compiled.plan.vars.get(&name)?.clone())));
    let given = given.collect();
    Ok(Loaded { compiled, bytes, base_dir: base_dir(file, settings), path, given })
}

/// Problems of flags alone are the command line's: exit 2. One in a file makes it exit 3.
fn refused(diagnostics: Diagnostics) -> Failure {
    let errors = || diagnostics.iter().filter(|problem| problem.severity == stead_model::Severity::Error);
    let kind = if errors().all(is_usage) { FailureKind::Usage } else { FailureKind::Invalid };
    Failure::of(kind, diagnostics.sorted())
}

/// Returns the names that flags and files give; the files have been read without problems.
fn given_names(inputs: &Inputs) -> impl Iterator<Item = String> {
    let mut names: Vec<String> = inputs.vars.iter().map(|flag| flag.name.clone()).collect();
    for source in &inputs.vars_files {
        if let Some(tree) = yaml::read(source, Codes::PLAN, &mut Diagnostics::default())
            && let Some(entries) = tree.root().as_map()
        {
            names.extend(entries.filter_map(|(key, _)| key.as_text().map(str::to_owned)));
        }
    }
    names.into_iter()
}

/// The hosts there are, and what says so.
pub(crate) struct KnownHosts {
    pub(crate) inventory: Inventory,
    /// The inventories and registries that were read, absolute.
    pub(crate) files: Vec<PathBuf>,
    /// The site whose nodes and hosts are among them.
    pub(crate) nodes: Option<NodesOrigin>,
}

impl KnownHosts {
    /// Adds what a program may use instead of asking for it again.
    pub(crate) fn recorded_in(&self, meta: PlanMeta) -> PlanMeta {
        let inventory = self.files.iter().map(|file| file.display().to_string()).collect();
        PlanMeta { inventory, nodes: self.nodes.clone(), ..meta }
    }
}

/// Returns the hosts there are.
///
/// `-i`, `--agents`, `-M` and `-H` name them; else `$STEAD_INVENTORY`, else `inventory.yaml` beside the plan, else here; and
/// `$STEAD_AGENTS`, else `agents.yaml` beside the plan, here or in the user's configuration; and the hosts of the site.
pub(crate) fn inventory(
    args: &InventoryArgs,
    base_dir: &Path,
    settings: &Settings,
) -> Result<KnownHosts, Failure> {
    let found = |given: &Option<PathBuf>, name: &str, dirs: &[&Path]| {
        let there = || dirs.iter().map(|dir| dir.join(name)).find(|file| file.is_file());
        given.clone().or_else(there)
    };
    let pair = &args.nodes;
    let names_nodes = pair.manifest.is_some() || pair.host.is_some();
    let names_files = !args.inventory.is_empty() || !args.agents.is_empty();
    let files: Vec<PathBuf> = if names_files || names_nodes {
        args.inventory.iter().chain(&args.agents).cloned().collect()
    } else {
        let near = [base_dir, &settings.current_dir];
        let near_or_own: Vec<&Path> = near.into_iter().chain(settings.config_dir.as_deref()).collect();
        let inventory = found(&settings.inventory, "inventory.yaml", &near);
        inventory.into_iter().chain(found(&settings.agents, "agents.yaml", &near_or_own)).collect()
    };
    let (mut inventory, places) =
        Inventory::read_placed(&sources(&files, Codes::REACH, settings)?).map_err(Failure::invalid)?;
    let of_site = if names_nodes {
        Some((site::find(&pair.site, settings)?, nodes::hosts::all(pair, settings)?))
    } else if names_files && pair.site.site.is_none() {
        None
    } else {
        nodes::hosts::of_site(&pair.site, settings)?
    };
    let files: Vec<PathBuf> = files.iter().map(|file| settings.current_dir.join(file)).collect();
    let nodes = of_site.as_ref().map(|(directory, _)| NodesOrigin {
        site: directory.path.display().to_string(),
        manifest: pair.manifest.clone(),
        host: pair.host.clone(),
    });
    if let Some((directory, others)) = of_site {
        inventory = together(inventory, &places, others, &directory)?;
    }
    Ok(KnownHosts { inventory, files, nodes })
}

/// Returns the hosts of files and of a site; one that both have, and not alike, would be either.
fn together(
    mut inventory: Inventory,
    places: &BTreeMap<HostName, Place>,
    of_site: Inventory,
    directory: &SiteDir,
) -> Result<Inventory, Failure> {
    let differs = |(name, host): &(&HostName, &Host)| {
        inventory.hosts.get(*name).is_some_and(|other| !other.is_same(host))
    };
    let problems = of_site.hosts.iter().filter(differs).map(|(name, _)| {
        let message =
            format!("the host `{name}` has another definition in the site {}", directory.shown.display());
        let place = places.get(name).cloned().unwrap_or_else(|| Place::Named(format!("host {name}")));
        Diagnostic::error("reach/duplicate-host", place, message)
            .help("rename one of them, or say with -i, or with -M and -H, which is meant")
    });
    let problems = Diagnostics(problems.collect());
    if problems.has_errors() {
        return Err(Failure::invalid(problems));
    }
    for (name, host) in of_site.hosts {
        inventory.hosts.entry(name).or_insert(host);
    }
    Ok(inventory)
}

/// What `--limit` says.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// Its expression, if it is given.
    pub(crate) exprs: Vec<TargetExpr>,
    /// What is to be known of it: labels and globs that match no host.
    pub(crate) warnings: Vec<Warning>,
}

impl Limit {
    /// Says what is to be known of it, for commands without a report that would.
    pub(crate) fn say(&self, output: &Output) {
        for Warning { code, text, .. } in &self.warnings {
            output.err.print_line(&format!("[warning] {code}: {text}"));
        }
    }
}

/// Returns what `--limit` says of the hosts of `inventory`; a host that it names must be one of them.
pub(crate) fn limit(args: &InventoryArgs, inventory: &Inventory) -> Result<Limit, Failure> {
    let Some(text) = args.limit.as_deref() else { return Ok(Limit::default()) };
    let expr = TargetExpr::parse(text).map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;
    let hosts = HostSet::from(inventory);
    let unknown = expr.unknown_hosts(&hosts);
    if let Some(first) = unknown.first() {
        let text = unknown.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        return Err(Failure::new(FailureKind::Usage, format!("--limit: {text}")).code(first.code()));
    }
    let warn = |unmatched: String| {
        Warning::new("reach/no-match", format!("--limit: `{unmatched}` matches no host of the inventory"))
    };
    Ok(Limit { warnings: expr.unmatched(&hosts).into_iter().map(warn).collect(), exprs: vec![expr] })
}

/// Reads files that a person named, every unreadable one reported.
fn sources(files: &[PathBuf], codes: Codes, settings: &Settings) -> Result<Vec<Source>, Failure> {
    let mut problems = Diagnostics::default();
    let mut sources = Vec::new();
    for file in files {
        let name = file.display().to_string();
        match read(&settings.current_dir.join(file)) {
            Ok(bytes) => match yaml::source(&name, bytes, codes) {
                Ok(source) => sources.push(source),
                Err(found) => problems.0.extend(found.0),
            },
            Err(error) => problems.push(cannot_read(&name, &error)),
        }
    }
    if problems.has_errors() { Err(Failure::invalid(problems)) } else { Ok(sources) }
}

/// Reads a file that a person wrote, up to the largest there may be.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?)
}

fn read_all(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns what is wrong with a file that cannot be read.
pub(crate) fn cannot_read(name: &str, error: &io::Error) -> Diagnostic {
    let place = Place::Named(name.to_owned());
    let near = (error.kind() == io::ErrorKind::NotFound).then(|| beside(Path::new(name))).flatten();
    let help = if let Some(near) = near {
        format!("did you mean `{near}`?")
    } else if error.kind() == io::ErrorKind::IsADirectory {
        "name a file in it".to_owned()
    } else {
        "check its name and permissions; a relative one starts where you are".to_owned()
    };
    Diagnostic::error("input/unreadable", place, format!("cannot read the file: {error}")).help(help)
}

/// Returns the file beside `path` whose name is nearest to its own.
fn beside(path: &Path) -> Option<String> {
    let (directory, name) = (path.parent()?, path.file_name()?.to_str()?);
    let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let names: Vec<String> =
        here.read_dir().ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let near = diagnostic::nearest(name, names.iter().map(String::as_str))?;
    Some(directory.join(near).display().to_string())
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::invalid(Diagnostics(vec![cannot_read(name, error)]))
}

//! A small ISO 9660 file system with Joliet names: a flat directory of a few files, as cloud-init reads its seed.
//!
//! ```text
//!   sector 16 volume   17 volume with Joliet names   18 end of volumes
//!          19, 20 path tables   21, 22 those of Joliet   23 directory   24 that of Joliet   25… files
//! ```
//! The same files give the same bytes: every date is that of the epoch.

const SECTOR: usize = 2048;
/// Before the first volume: left to boot loaders.
const SYSTEM_AREA: usize = 16;
const FIRST_FILE: usize = 25;
/// What directory entries of this writer must fit into.
const DIRECTORY: usize = SECTOR;

/// Which of the two trees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    Plain,
    Joliet,
}

impl Tree {
    fn path_tables(self) -> (u32, u32) {
        match self {
            Self::Plain => (19, 20),
            Self::Joliet => (21, 22),
        }
    }

    fn directory(self) -> u32 {
        match self {
            Self::Plain => 23,
            Self::Joliet => 24,
        }
    }

    /// A file's name, as this tree writes it.
    fn name(self, name: &str) -> Vec<u8> {
        match self {
            Self::Plain => format!("{}.;1", name.to_ascii_uppercase()).into_bytes(),
            Self::Joliet => name.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }

    /// A field of text, filled up with spaces.
    fn text(self, text: &str, length: usize) -> Vec<u8> {
        let mut bytes = match self {
            Self::Plain => text.as_bytes().to_vec(),
            Self::Joliet => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        };
        bytes.truncate(length);
        while bytes.len() < length {
            bytes.extend_from_slice(match self {
                Self::Plain => b" ",
                Self::Joliet => b"\0 ",
            });
        }
        bytes.truncate(length);
        bytes
    }
}

/// Returns the image of a volume with these files, or why there can be none.
pub(super) fn write(label: &str, files: &[(&str, &[u8])]) -> Result<Vec<u8>, String> {
    for (name, _) in files {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 27 || !name.chars().all(fits) {
            return Err(format!("`{name}` is not a name for a seed"));
        }
    }
    let mut place = FIRST_FILE;
    let mut extents = Vec::new();
    for (name, content) in files {
        let size = u32::try_from(content.len()).map_err(|_| format!("{name} is too large"))?;
        let sector = u32::try_from(place).map_err(|_| "too much for one volume".to_owned())?;
        extents.push((*name, sector, size));
        place += content.len().div_ceil(SECTOR);
    }
    let sectors = u32::try_from(place).map_err(|_| "too much for one volume".to_owned())?;
    let mut image = vec![0; SYSTEM_AREA * SECTOR];
    image.extend(volume(Tree::Plain, label, sectors));
    image.extend(volume(Tree::Joliet, label, sectors));
    image.extend(sector([&[255], &b"CD001"[..], &[1]].concat()));
    for tree in [Tree::Plain, Tree::Joliet] {
        let root = tree.directory();
        image.extend(sector([&[1, 0][..], &root.to_le_bytes(), &1_u16.to_le_bytes(), &[0, 0]].concat()));
        image.extend(sector([&[1, 0][..], &root.to_be_bytes(), &1_u16.to_be_bytes(), &[0, 0]].concat()));
    }
    for tree in [Tree::Plain, Tree::Joliet] {
        image.extend(directory(tree, &extents)?);
    }
    for (_, content) in files {
        image.extend_from_slice(content);
        image.resize(image.len().div_ceil(SECTOR) * SECTOR, 0);
    }
    Ok(image)
}

fn sector(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(SECTOR, 0);
    bytes
}

/// A number as this format writes it: once for each order of bytes.
fn both32(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    let (little, big) = bytes.split_at_mut(4);
    little.copy_from_slice(&number.to_le_bytes());
    big.copy_from_slice(&number.to_be_bytes());
    bytes
}

fn both16(number: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    let (little, big) = bytes.split_at_mut(2);
    little.copy_from_slice(&number.to_le_bytes());
    big.copy_from_slice(&number.to_be_bytes());
    bytes
}

fn volume(tree: Tree, label: &str, sectors: u32) -> Vec<u8> {
    let (little, big) = tree.path_tables();
    let (kind, escapes): (u8, &[u8]) = match tree {
        Tree::Plain => (1, b""),
        Tree::Joliet => (2, b"%/E"),
    };
    let mut bytes = [&[kind], &b"CD001"[..], &[1, 0]].concat();
    bytes.extend(tree.text("", 32));
    bytes.extend(tree.text(label, 32));
    bytes.extend([0; 8]);
    bytes.extend(both32(sectors));
    let mut unused = escapes.to_vec();
    unused.resize(32, 0);
    bytes.extend(unused);
    bytes.extend(both16(1));
    bytes.extend(both16(1));
    bytes.extend(both16(2048));
    bytes.extend(both32(10));
    bytes.extend(little.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(big.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(entry(&[0], tree.directory(), DIRECTORY as u32, true));
    for length in [128, 128, 128, 128, 37, 37, 37] {
        bytes.extend(tree.text("", length));
    }
    for _ in 0..4 {
        bytes.extend(b"0000000000000000\0");
    }
    bytes.push(1);
    sector(bytes)
}

fn directory(tree: Tree, files: &[(&str, u32, u32)]) -> Result<Vec<u8>, String> {
    let mut bytes = entry(&[0], tree.directory(), DIRECTORY as u32, true);
    bytes.extend(entry(&[1], tree.directory(), DIRECTORY as u32, true));
    let mut entries: Vec<(Vec<u8>, u32, u32)> =
        files.iter().map(|(name, place, size)| (tree.name(name), *place, *size)).collect();
    entries.sort();
    for (name, place, size) in entries {
        bytes.extend(entry(&name, place, size, false));
    }
    if bytes.len() > DIRECTORY {
        return Err("too many files for a seed".to_owned());
    }
    Ok(sector(bytes))
}

fn entry(name: &[u8], place: u32, size: u32, is_directory: bool) -> Vec<u8> {
    let name_length = u8::try_from(name.len()).unwrap_or(u8::MAX);
    let mut bytes = vec![0, 0];
    bytes.extend(both32(place));
    bytes.extend(both32(size));
    bytes.extend([70, 1, 1, 0, 0, 0, 0]);
    bytes.extend([if is_directory { 2 } else { 0 }, 0, 0]);
    bytes.extend(both16(1));
    bytes.push(name_length);
    bytes.extend_from_slice(name);
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    if let Some(first) = bytes.first_mut() {
        *first = length;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8]) -> usize {
        u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
    }

    /// Names with contents.
    type Files = Vec<(Vec<u8>, Vec<u8>)>;

    /// Reads a volume back, as the descriptor in `sector` says.
    fn read(image: &[u8], sector: usize) -> (Vec<u8>, Files) {
        let volume = &image[sector * SECTOR..(sector + 1) * SECTOR];
        assert_eq!(&volume[1..6], b"CD001");
        assert_eq!(number(&volume[80..]) * SECTOR, image.len(), "its size is said");
        let root = &volume[156..190];
        let directory = &image[number(&root[2..]) * SECTOR..][..number(&root[10..])];
        let mut files = Vec::new();
        let mut place = 0;
        while directory[place] != 0 {
            let entry = &directory[place..place + usize::from(directory[place])];
            let name = entry[33..33 + usize::from(entry[32])].to_vec();
            let content = image[number(&entry[2..]) * SECTOR..][..number(&entry[10..])].to_vec();
            if entry[25] == 0 {
                files.push((name, content));
            }
            place += entry.len();
        }
        (volume[40..72].to_vec(), files)
    }

    #[test]
    fn what_is_written_is_read_back_under_both_names() {
        let long = vec![7; 5000];
        let files: [(&str, &[u8]); 3] = [("user-data", b"#cloud-config\n"), ("meta-data", b""), ("x", &long)];
        let image = write("cidata", &files).unwrap();
        let (label, plain) = read(&image, 16);
        assert_eq!(label.trim_ascii_end(), b"cidata");
        let names: Vec<&[u8]> = plain.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, [&b"META-DATA.;1"[..], b"USER-DATA.;1", b"X.;1"]);
        assert_eq!(plain[1].1, b"#cloud-config\n");
        assert_eq!(plain[2].1, long);
        let (_, joliet) = read(&image, 17);
        assert_eq!(joliet[1].0, b"\0u\0s\0e\0r\0-\0d\0a\0t\0a");
        assert_eq!(joliet[1].1, b"#cloud-config\n");
        assert_eq!(write("cidata", &files).unwrap(), image, "the same files give the same bytes");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for bad in ["", "A", "a/b", "..", "a.b"] {
            assert!(write("cidata", &[(bad, b"")]).is_err(), "{bad}");
        }
        let names: Vec<String> = (0..60).map(|number| format!("file-number-{number}")).collect();
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        assert!(write("cidata", &many).is_err());
    }
}

//! Keys as the screen understands them.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Esc,
    /// Tab.
    Tab,
    /// Shift and Tab.
    BackTab,
    /// Cursor up.
    Up,
    /// Cursor down.
    Down,
    /// Cursor left.
    Left,
    /// Cursor right.
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// To the beginning.
    Home,
    /// To the end.
    End,
    /// Deletes to the left.
    Backspace,
    /// Deletes to the right.
    Delete,
    /// Ctrl-U: deletes all to the left.
    DeleteLine,
    /// Ctrl-C: what would be SIGINT on a terminal that makes signals.
    Interrupt,
    /// Ctrl-L: draw everything again.
    Redraw,
}

impl Key {
    /// Returns the key of a terminal's event; none if it means nothing here.
    pub(crate) fn of(event: KeyEvent) -> Option<Self> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return Self::with_control(event.code);
        }
        if event.modifiers.intersects(KeyModifiers::ALT | KeyModifiers::SUPER) {
            return None;
        }
        Some(match event.code {
            KeyCode::Char(c) => Self::Char(c),
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Esc,
            KeyCode::Tab => Self::Tab,
            KeyCode::BackTab => Self::BackTab,
            KeyCode::Up => Self::Up,
            KeyCode::Down => Self::Down,
            KeyCode::Left => Self::Left,
            KeyCode::Right => Self::Right,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Home => Self::Home,
            KeyCode::End => Self::End,
            KeyCode::Backspace => Self::Backspace,
            KeyCode::Delete => Self::Delete,
            KeyCode::Insert
            | KeyCode::F(_)
            | KeyCode::Null
            | KeyCode::CapsLock
            | KeyCode::ScrollLock
            | KeyCode::NumLock
            | KeyCode::PrintScreen
            | KeyCode::Pause
            | KeyCode::Menu
            | KeyCode::KeypadBegin
            | KeyCode::Media(_)
            | KeyCode::Modifier(_) => return None,
        })
    }

    fn with_control(code: KeyCode) -> Option<Self> {
        let KeyCode::Char(c) = code else { return None };
        match c.to_ascii_lowercase() {
            'c' => Some(Self::Interrupt),
            'l' => Some(Self::Redraw),
            'u' => Some(Self::DeleteLine),
            'a' => Some(Self::Home),
            'e' => Some(Self::End),
            'h' => Some(Self::Backspace),
            // Some terminals send these for Enter.
            'j' | 'm' => Some(Self::Enter),
            _ => None,
        }
    }
}

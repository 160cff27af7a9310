//! Linux: the mechanisms, a file each.

mod bounds;
pub(crate) mod cgroup;
pub(crate) mod descent;
pub(crate) mod environ;
pub(crate) mod inherited;
pub(crate) mod launch;
pub(crate) mod mark;
pub(crate) mod pidns;
pub(crate) mod procfs;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod text;
pub(crate) mod wait;

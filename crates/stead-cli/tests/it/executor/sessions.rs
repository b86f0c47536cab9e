//! Operations through a session: same results as here, output whole, lost channels found again.

use serde_json::json;
use stead_model::Status;

use super::direct::{Place, op};

#[tokio::test]
async fn a_file_is_made_on_the_target_and_the_session_leaves_nothing() {
    let place = Place::new();
    let path = place.target("motd");
    let present = || op("file.present", json!({"path": path, "content": "hello\n", "mode": "0640"}));
    for wanted in [Status::Changed, Status::Unchanged] {
        let report = place
            .run(|plan| {
                plan.op("motd", present()).on("web1");
            })
            .await;
        assert_eq!(report.tasks[0].status, wanted, "{report:#?}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello\n");
    assert_eq!(place.sessions_left(), 0);
}

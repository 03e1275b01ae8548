"""The faults that the broker survives, and the tests that prove it: number, promise, tests by `file::name` below `tests/`."""

from __future__ import annotations

from dataclasses import dataclass

JOURNAL = "broker/journal/"


@dataclass(frozen=True)
class FaultCase:
    """One fault. `promise`: what holds when it strikes."""

    number: int
    fault: str
    promise: str
    tests: tuple[str, ...]


CASES = (
    FaultCase(
        1, "broker killed between receiving and journaling",
        "no acknowledged message is missing; the others are sent again, and taken once",
        ("broker/test_crash_points.py::test_no_point_between_a_message_and_its_acknowledgement_loses_or_doubles_it",
         "broker/test_restarts.py::test_a_run_survives_the_death_of_its_broker"),
    ),
    FaultCase(
        2, "broker killed between writing and syncing",
        "nothing leaves before the sync that covers its event has returned",
        (JOURNAL + "test_driver_and_disk.py::test_no_acknowledgement_and_no_delivery_leaves_before_its_event_is_synced",
         JOURNAL + "test_faults.py::test_nothing_is_durable_before_the_sync_that_covers_it_returns",
         "broker/test_driver.py::test_nothing_leaves_before_the_event_that_caused_it_is_durable",
         "broker/test_crash_points.py::test_no_point_between_a_message_and_its_acknowledgement_loses_or_doubles_it"),
    ),
    FaultCase(
        3, "broker killed between syncing and acknowledging",
        "the message stands in the journal once; sent again, it is acknowledged again",
        ("broker/test_crash_points.py::test_no_point_between_a_message_and_its_acknowledgement_loses_or_doubles_it",
         "broker/core/test_commits.py::test_a_number_that_came_before_is_answered_and_not_taken_twice"),
    ),
    FaultCase(
        4, "broker killed in the middle of a write",
        "it starts, drops the tail that nobody was answered for, and says how many bytes that were",
        ("broker/test_crash_points.py::test_no_point_between_a_message_and_its_acknowledgement_loses_or_doubles_it",
         JOURNAL + "test_journal.py::test_a_commit_torn_at_the_tail_is_cut_and_its_bytes_are_told",
         JOURNAL + "test_journal.py::test_a_tail_of_anothers_bytes_is_cut"),
    ),
    FaultCase(
        5, "power cut: all that was not synced is gone, in any legal mixture",
        "nothing acknowledged is lost",
        (JOURNAL + "test_powercuts.py::test_no_power_cut_loses_what_was_acknowledged",
         JOURNAL + "test_powercuts.py::test_no_power_cut_during_a_recovery_loses_what_was_acknowledged"),
    ),
    FaultCase(
        6, "a bit flips in a sealed segment",
        "that record is quarantined and told of, all others are served, the segment is never cut",
        (JOURNAL + "test_journal.py::test_a_flipped_bit_costs_its_own_entry_and_no_other",
         JOURNAL + "test_journal.py::test_lost_entries_stop_the_reading_by_name_unless_loss_is_accepted",
         JOURNAL + "test_checkpoints.py::test_damage_below_a_checkpoint_is_quarantined_said_and_costs_nothing",
         JOURNAL + "test_checkpoints.py::test_a_record_whose_frames_are_damaged_is_named_and_all_others_are_served",
         JOURNAL + "test_damaged_records.py::test_a_damaged_record_ends_or_renews_what_needs_it_and_nothing_else"),
    ),
    FaultCase(
        7, "a segment is cut or filled with zeroes",
        "in the middle that is corruption, at the tail a clean end",
        (JOURNAL + "test_journal.py::test_a_sealed_segment_that_lost_its_middle_or_end_is_corruption_not_a_clean_end",
         JOURNAL + "test_journal.py::test_zeroes_at_the_tail_are_a_clean_end"),
    ),
    FaultCase(
        8, "derived files are lost or damaged",
        "the state after a start is the same without them",
        (JOURNAL + "test_checkpoints.py::test_lost_or_damaged_checkpoints_change_nothing",),
    ),
    FaultCase(
        9, "the name of a new segment was not synced",
        "the directory is synced before anything in the segment is acknowledged",
        (JOURNAL + "test_faults.py::test_a_segments_name_is_on_disk_before_anything_in_it_is_acknowledged",
         JOURNAL + "test_powercuts.py::test_no_power_cut_loses_what_was_acknowledged"),
    ),
    FaultCase(
        10, "a sync fails",
        "the broker stops, acknowledges nothing of that batch, and never syncs that file again",
        (JOURNAL + "test_faults.py::test_a_failed_sync_stops_the_broker_and_is_never_tried_again",
         JOURNAL + "test_driver_and_disk.py::test_a_failed_sync_stops_the_broker_before_anything_is_acknowledged"),
    ),
    FaultCase(
        11, "the disk is full",
        "new work is refused by name, work in flight goes on, the partial write is cut back, and all goes on by itself",
        (JOURNAL + "test_driver_and_disk.py::test_a_full_disk_refuses_what_has_no_ticket_and_takes_it_again_by_itself",
         JOURNAL + "test_driver_and_disk.py::test_a_disk_without_any_room_holds_the_answers_until_there_is_some",
         JOURNAL + "test_faults.py::test_what_a_full_disk_cannot_take_is_cut_back_held_and_written_once_there_is_room",
         "broker/core/test_commits.py::test_a_full_disk_refuses_only_what_has_no_ticket"),
    ),
    FaultCase(
        12, "a write takes less than given, or is interrupted",
        "it is completed",
        (JOURNAL + "test_faults.py::test_writes_that_take_less_than_given_are_completed",
         JOURNAL + "test_faults.py::test_a_batch_written_in_pieces_is_whole",
         JOURNAL + "test_faults.py::test_an_interrupted_write_is_taken_up_again"),
    ),
    FaultCase(
        13, "two brokers on one directory",
        "the second ends at once",
        ("broker/test_restarts.py::test_a_second_broker_on_one_run_is_refused_at_once",
         JOURNAL + "test_journal.py::test_two_brokers_never_write_to_one_directory",
         JOURNAL + "test_journal.py::test_a_new_segment_begins_where_one_is_full_and_its_head_names_its_first_entry_and_writer"),
    ),
    FaultCase(
        14, "a producer is killed with messages in its pipe",
        "what was not taken is made again: by whoever gets the work, and the same bits where it is a step",
        ("broker/test_faulty_clients.py::test_what_a_killed_process_had_in_its_pipe_is_made_again_by_another",
         "stages/actor_train/test_stage.py::test_killed_between_vote_and_commit_a_trainer_resumes_to_the_same_bits",
         "stages/actor_train/test_stage.py::test_killed_between_checkpoint_and_version_a_trainer_publishes_it_when_it_is_back"),
    ),
    FaultCase(
        15, "a consumer is killed with leases in its hands",
        "each is delivered again within the silence that is allowed and one tick, its count one higher",
        ("broker/core/test_pauses.py::test_silence_is_measured_in_heartbeats_and_work_goes_back_one_tick_after_the_last_moment",
         "broker/core/test_clients.py::test_a_silent_client_is_suspected_then_given_up_and_its_work_is_delivered_anew",
         "broker/test_faulty_clients.py::test_what_a_killed_process_had_in_its_pipe_is_made_again_by_another"),
    ),
    FaultCase(
        16, "a consumer freezes, thaws and answers late",
        "its lease is stale, it is told so, and nothing counts twice",
        ("broker/test_faulty_clients.py::test_a_frozen_process_that_answers_late_is_told_and_counts_once",
         "broker/core/test_failures.py::test_a_lease_past_its_hard_deadline_goes_back_even_from_a_client_that_lives",
         "broker/core/test_commits.py::test_one_stale_lease_refuses_the_whole_commit_and_spends_its_number"),
    ),
    FaultCase(
        17, "a consumer hangs while its sockets still answer",
        "only the thread that does the work renews leases",
        ("broker/test_faulty_clients.py::test_a_hung_stage_loses_its_leases_though_its_sockets_still_answer",
         "stages/service/test_loop.py::test_no_heartbeat_leaves_while_the_stage_is_not_responsive"),
    ),
    FaultCase(
        18, "a message kills every consumer",
        "after so many deliveries it is a dead letter with its history, and the queue flows on",
        ("broker/test_faulty_clients.py::test_a_record_that_kills_every_consumer_becomes_a_dead_letter_and_the_queue_flows_on",
         "broker/core/test_dead_letters.py::test_a_record_that_cannot_be_processed_is_kept_with_every_attempt"),
    ),
    FaultCase(
        19, "slow consumers, fast producers",
        "messages and bytes stay within the one budget, producers wait, nothing is dropped",
        ("broker/test_faulty_clients.py::test_a_slow_consumer_holds_its_producers_back_within_the_budget_and_nothing_is_dropped",
         "broker/core/test_clients.py::test_credit_bounds_what_a_client_holds",
         "broker/policy/test_admission.py::test_the_budget_bounds_admission_to_whole_groups",
         "broker/security/test_storms.py::test_a_client_that_does_not_read_is_given_up_and_may_come_back"),
    ),
    FaultCase(
        20, "an acknowledgement is lost with its line",
        "the trainer gets every sample once",
        ("broker/test_faulty_clients.py::test_answers_lost_with_their_line_make_no_sample_count_twice",
         "broker/core/test_plans.py::test_a_trainer_killed_after_its_commit_gets_the_recorded_plan_and_the_recorded_answer",
         "stages/actor_train/test_stage.py::test_a_plan_that_comes_twice_is_voted_on_again_and_computed_once"),
    ),
    FaultCase(
        21, "a message comes again after any time",
        "numbers are remembered for a producer's whole life, over restarts",
        ("broker/core/test_dedupe.py::test_a_message_that_comes_again_a_month_a_restart_and_thousands_of_messages_later_is_not_taken",),
    ),
    FaultCase(
        22, "a producer starts anew and counts from 1",
        "its new epoch is taken, its old self is fenced",
        ("broker/core/test_dedupe.py::test_a_producer_that_starts_anew_counts_from_1_and_its_old_self_is_fenced",
         "broker/core/test_commits.py::test_numbers_of_an_older_epoch_are_fenced",
         "broker/core/test_clients.py::test_a_fenced_process_does_not_come_back_by_saying_hello"),
    ),
    FaultCase(
        23, "two processes with one routing id",
        "the newer works, the older is told that it is fenced",
        ("broker/security/test_storms.py"
         "::test_of_two_processes_with_one_routing_id_the_newer_works_and_the_older_is_told_that_it_is_fenced",),
    ),
    FaultCase(
        24, "the broker restarts while clients are connected",
        "after their hello credit and leases go on, unclaimed work is delivered anew, doubles are dropped",
        ("broker/test_restarts.py::test_what_was_in_flight_at_the_death_of_a_broker_is_not_done_again",
         "broker/core/test_clients.py::test_after_a_restart_every_client_is_told_to_say_hello_and_keeps_what_it_holds",
         "broker/core/test_clients.py::test_what_a_returning_client_does_not_hold_goes_back_and_what_it_holds_in_error_is_named",
         "stages/service/test_loop.py::test_what_was_committed_is_kept_over_a_restart_of_the_broker_and_sent_again"),
    ),
    FaultCase(
        25, "a thousand clients come back at once",
        "the last of them is welcome within five seconds",
        ("broker/test_reconnect_storms.py::test_a_thousand_clients_are_welcome_again_within_five_seconds_of_a_restart",
         "broker/test_reconnect_storms.py::test_a_crowd_is_welcome_again_after_a_restart_and_nobody_is_forgotten",
         "broker/security/test_storms.py::test_a_thousand_clients_with_keys_are_back_within_seconds_of_a_restart"),
    ),
    FaultCase(
        26, "no descriptor is left (tcp)",
        "those connected are served and what they say becomes durable, others come in when some have left",
        ("broker/security/test_storms.py::test_out_of_descriptors_the_broker_goes_on_and_takes_new_ones_when_others_leave",
         "broker/test_descriptors.py::test_out_of_descriptors_the_journal_goes_on_into_new_segments",
         JOURNAL + "test_spares.py::test_segments_go_on_from_spares_and_what_they_hold_is_read_back"),
    ),
    FaultCase(
        27, "a wrong, unknown or missing key",
        "nobody comes in, and the client says so within two seconds",
        ("broker/security/test_door.py::test_a_wrong_or_missing_key_is_a_clear_error_within_two_seconds",
         "broker/security/test_door.py::test_without_its_handler_the_door_is_shut"),
    ),
    FaultCase(
        28, "malformed, oversized or unknown messages",
        "the loop goes on, the sender is told why, memory stays within its bound",
        ("broker/security/test_floods.py::test_no_frames_stop_the_loop",
         "broker/security/test_floods.py::test_an_oversized_frame_closes_its_connection_and_nobody_elses",
         "broker/security/test_floods.py::test_another_schema_is_refused_for_good",
         "broker/security/test_floods.py::test_a_flood_of_nonsense_keeps_memory_within_what_is_stated",
         "broker/test_driver.py::test_a_commit_with_wrong_frames_is_refused_and_spends_its_number",
         "fuzz/test_decoder.py::test_a_coverage_guided_fuzzer_finds_nothing_that_the_decoder_does_not_refuse"),
    ),
    FaultCase(
        29, "a clock jumps, or the machine stands still",
        "leases know no wall clock, and outlive a pause by one grace period",
        ("broker/test_clocks.py::test_a_wall_clock_that_jumps_an_hour_ends_no_lease",
         "broker/test_clocks.py::test_a_broker_and_a_stage_that_stood_still_together_take_nothing_from_each_other",
         "broker/core/test_pauses.py::test_a_pause_ends_no_lease_and_gives_nobody_up",
         "broker/core/test_pauses.py::test_after_one_grace_period_leases_end_as_ever"),
    ),
    FaultCase(
        30, "a client is used in a forked child",
        "it says so, and the parent's goes on",
        ("broker/security/test_storms.py::test_a_client_used_in_a_forked_child_says_so_and_the_parents_goes_on",
         "broker/test_client.py::test_a_client_is_of_no_use_in_a_forked_child"),
    ),
    FaultCase(
        31, "a crash during recovery, rotation or a checkpoint",
        "killed at each call of each of them, the broker has the same state",
        (JOURNAL + "test_powercuts.py::test_a_kill_at_every_call_of_append_rotate_checkpoint_and_recover_leaves_the_same_state",
         JOURNAL + "test_powercuts.py::test_a_kill_at_every_call_of_a_recovery_leaves_the_same_state"),
    ),
    FaultCase(
        32, "tokens of a policy that is too old",
        "at the named check they lose their mask, the denominator stays, and they are counted",
        ("broker/core/test_plans.py::test_a_plan_says_which_version_is_too_old",
         "broker/core/test_versions.py::test_a_late_replica_gets_the_current_version_before_its_first_turn",
         "stages/actor_train/test_masking.py::test_tokens_that_too_old_a_version_sampled_lose_their_mask",
         "stages/actor_train/test_gradients.py::test_masking_old_tokens_does_not_scale_up_the_rest",
         "stages/actor_train/test_stage.py::test_the_vote_tells_what_the_step_was_made_of"),
    ),
    FaultCase(
        33, "the broker dies while a client streams",
        "every hole is asked for; over a hundred deaths all is taken, in order, once",
        ("broker/test_streams.py::test_a_stream_over_a_hundred_deaths_of_its_broker_is_complete_in_order_and_without_doubles",
         "broker/test_streams.py::test_a_stream_over_deaths_of_its_broker_is_complete_in_order_and_without_doubles",
         "broker/core/test_commits.py::test_a_number_out_of_order_is_answered_with_where_to_resend_from_and_changes_nothing"),
    ),
)  # fmt: skip
